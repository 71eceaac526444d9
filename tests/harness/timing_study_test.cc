// SPDX-License-Identifier: Apache-2.0
// Timing files: what is read, what is refused, and whether claims are judged rightly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/scenario.h"
#include "harness/timing/blocks.h"
#include "harness/timing/predict.h"
#include "harness/timing/prediction_text.h"
#include "tests/harness/scenario_findings.h"
#include "tests/support/golden.h"

namespace lockstep::test {
namespace {

using harness::best_bucket_cap;
using harness::describe_point;
using harness::judge_claims;
using harness::layers_text;
using harness::measure_blocks;
using harness::predict;
using harness::quantity;
using harness::TimingStudy;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Ring over 2 ranks, 8 Gbit/s = 1 ns per byte, no latency: two layers of 400 kB, forward 200 us,
// gradients at 400 and 600 us.
const std::string kHead = R"(schema = 1
kind = "timing"
[network]
algorithm = "ring"
latency_us = 0.0
bandwidth_gbit_per_s = 8.0
[train]
steps = 2
[ddp]
first_bucket_cap_bytes = 1
bucket_cap_bytes = 1
[[layer]]
name = "layer"
count = 2
parameters = [100_000]
forward_us = 100.0
)";

TimingStudy study_of(const std::string& text) {
  harness::ScenarioSet set = harness::parse_text(text, "case.toml");
  EXPECT_THAT(set.cases, SizeIs(0));
  EXPECT_THAT(set.studies, SizeIs(1));
  return set.studies.at(0);
}

struct Judged {
  bool holds = false;
  std::string text;
};

/// The verdict on one claim, with these axes.
Judged judge(const std::string& vary, const std::string& claim) {
  const TimingStudy study = study_of(kHead + "[vary]\n" + vary + "\n[[expect]]\n" + claim);
  const auto outcomes = judge_claims(study, predict(study));
  EXPECT_THAT(outcomes, SizeIs(1));
  return {outcomes.at(0).holds, outcomes.at(0).text};
}

TEST(TimingStudyTest, AxesBecomePointsAndALinkedPairIsOneAxis) {
  const TimingStudy study = study_of(kHead + R"([vary]
"world.ranks" = [2, 4]
[[vary.linked]]
"train.micro_batches" = [1, 8]
"train.samples_per_micro_batch" = [8, 1]
)");
  ASSERT_THAT(study.points, SizeIs(4));
  EXPECT_EQ(study.points[3].name, "ranks=4,micro_batches=8,samples_per_micro_batch=1");
  EXPECT_EQ(study.points[3].setup.world.ranks, 4);
  EXPECT_EQ(study.points[3].setup.train.micro_batches, 8);
  ASSERT_THAT(study.axes, SizeIs(2));
  EXPECT_THAT(study.axes[1].values, ElementsAre("1,8", "8,1"));
  EXPECT_EQ(find_axis(study, "train.samples_per_micro_batch"), 1U);
  EXPECT_EQ(find_axis(study, "ranks"), 0U);
  EXPECT_EQ(find_axis(study, "steps"), std::nullopt);
}

TEST(TimingStudyTest, AllMistakesAreToldAtOnceWithTheirPlaces) {
  EXPECT_THAT(findings_of(R"(schema = 1
kind = "timing"
[world]
rank = 4
[network]
bandwidth_gbit_per_s = 0.0
algorithm = "rign"
[[layer]]
parameters = [-1]
[train]
overlap = true
)"),
              ElementsAre(finding("4:1", {"unknown key 'rank' in world", "did you mean 'ranks'?"}),
                          finding("6:24", {"expected a number above 0"}),
                          finding("7:13", {"network.algorithm", "did you mean 'ring'?"}),
                          finding("9:15", {"expected an integer from 0"}),
                          finding("11:1", {"'overlap' belongs to [ddp]"})));
}

TEST(TimingStudyTest, ContradictionsCiteTheKey) {
  EXPECT_THAT(findings_of(kHead + "[world]\nranks = 12\nranks_per_node = 8\n"),
              ElementsAre(finding("19:1", {"12 ranks do not fill nodes of 8"})));
  EXPECT_THAT(findings_of(kHead + "[[straggler]]\nrank = 2\n"),
              ElementsAre(finding("18:1", {"there is no rank 2 among 2"})));
}

TEST(TimingStudyTest, ClaimsAreHeldAgainstTheAxes) {
  EXPECT_THAT(findings_of(kHead + R"([vary]
"world.ranks" = [2, 4]
[[expect]]
claim = "falls"
[[expect]]
claim = "rises"
over = "world.rank"
[[expect]]
claim = "interior_minimum"
over = "world.ranks"
[[expect]]
claim = "bounds"
over = "ranks"
[[expect]]
claim = "ratio"
over = "ranks"
min = 2.0
max = 1.0
only = "ranks=8"
)"),
              ElementsAre(finding("19:1", {"'falls' is about an axis; expected over = one of "
                                           "world.ranks"}),
                          finding("23:1", {"did you mean 'world.ranks'?"}),
                          finding("26:1", {"has 2 values; 'interior_minimum' needs 3"}),
                          finding("28:1", {"says nothing without min or max"}),
                          finding("29:1", {"expected no 'over'"}),
                          finding("33:1", {"min = 2 is above max = 1"}),
                          finding("35:1", {"is found in the name of no point"})));
  EXPECT_THAT(findings_of(kHead + "[vary]\n\"expect.0.min\" = [1.0]\n[[expect]]\nclaim = "
                                  "\"bounds\"\nmin = 1.0\n"),
              ElementsAre(finding("18:1", {"'expect' cannot vary"})));
}

TEST(TimingStudyTest, TimesThatCannotBeSimulatedHaveAPlace) {
  EXPECT_THAT(findings_of(kHead + "[compute]\noptimizer_us = 1e12\n"),
              ElementsAre(finding("18:1", {"updates take 2e+06 s", "expected at most 2.88e+05"})));
}

// What a backtracking search would take years for, or more stack than there is.
TEST(TimingStudyTest, AnExpressionCannotHang) {
  const auto file = [](const std::string& only) {
    return kHead +
           "[vary]\n\"network.algorithm\" = [\"ring\", \"halving_doubling\"]\n"
           "\"world.ranks\" = [2, 4]\n[[expect]]\nclaim = \"bounds\"\nmin = 0.0\n"
           "only = '" +
           only + "'\n";
  };
  EXPECT_THAT(findings_of(file("(r|in|g|i|n|ing|a|l|o|m|t|h|=|.|.)*Z$")),
              ElementsAre(finding("23:1", {"is found in the name of no point"})));
  EXPECT_THAT(study_of(file("((a*)*)*ranks=[24]$")).claims, SizeIs(1));
  EXPECT_THAT(findings_of(file("(a?){20000}")),
              ElementsAre(finding("23:1", {"counts repetitions"})));
  EXPECT_THAT(findings_of(file(std::string(201, '('))),
              ElementsAre(finding("23:1", {"of 201 bytes; expected at most 200"})));
  EXPECT_THAT(findings_of(file("(ring)\\1")),
              ElementsAre(finding("23:1", {"is no regular expression"})));
}

TEST(TimingStudyTest, AScenarioIsNoTimingFileAndTheOtherWayRound) {
  EXPECT_THROW(harness::parse_scenario_text(kHead, "case.toml"), UsageError);
  EXPECT_THAT(findings_of("schema = 1\nkind = \"timming\"\n"),
              ::testing::Contains(finding("2:8", {"did you mean 'timing'?"})));
}

TEST(TimingStudyTest, ABlockGivesParametersAndFlops) {
  const std::string text = R"(schema = 1
kind = "timing"
[compute]
gflop_per_s = 100.0
[[layer]]
block = "linear 1000 500"
)";
  const auto layer = study_of(text).points[0].setup.layers[0];
  EXPECT_THAT(layer.parameters, ElementsAre(500'000, 500));
  EXPECT_DOUBLE_EQ(layer.forward_gflop_per_sample, 1e-3);
  EXPECT_THAT(findings_of(text + "parameters = [3]\n"),
              ElementsAre(finding("6:1", {"expected no others"})));
  EXPECT_THAT(findings_of("schema = 1\nkind = \"timing\"\n[[layer]]\nblock = \"conv2d 3 4 5\"\n"),
              ElementsAre(finding("4:1", {"is not a plain linear block"})));
}

// Ring time of 400 kB over 2 ranks: 400 us. Backward ends at 600 us; buckets end at 800 and 1200.
TEST(TimingStudyTest, QuantitiesAreThoseOfTheTimeLine) {
  const TimingStudy study = study_of(kHead);
  const auto predictions = predict(study);
  const auto of = [&](const char* name) {
    return quantity(name, study.points[0].setup, predictions[0]);
  };
  EXPECT_EQ(of("step_ms"), 1.2);
  EXPECT_EQ(of("compute_ms"), 0.6);
  EXPECT_EQ(of("communication_ms"), 0.8);
  EXPECT_EQ(of("exposed_ms"), 0.6);
  EXPECT_EQ(of("exposed_share"), 0.5);
  EXPECT_NEAR(of("overlap_share"), 0.25, 1e-12);
  EXPECT_NEAR(of("samples_per_s"), 2 / 1.2e-3, 1e-6);
  EXPECT_EQ(of("gradient_bytes"), 800'000.0);
  EXPECT_EQ(of("wire_bytes_per_rank"), 800'000.0);
  EXPECT_EQ(of("buckets"), 2.0);
}

TEST(TimingStudyTest, BoundsSayByHowMuchTheyAreMissed) {
  EXPECT_TRUE(judge("seed = [1, 2]", "claim = \"bounds\"\nmin = 1.2\nmax = 1.2").holds);
  const Judged broken = judge("seed = [1, 2]", "claim = \"bounds\"\nmin = 1.5");
  EXPECT_FALSE(broken.holds);
  EXPECT_THAT(broken.text, AllOf(HasSubstr("step_ms is 1.2"), HasSubstr("expected at least 1.5"),
                                 HasSubstr("short by 0.3 (20 %)"), HasSubstr("at seed=1"),
                                 HasSubstr("and 1 more")));
}

// Without overlap both buckets start at 600 us: 1400 us.
TEST(TimingStudyTest, ARatioComparesTheEndsOfAnAxis) {
  const std::string vary = "\"ddp.overlap\" = [false, true]";
  EXPECT_TRUE(judge(vary, "claim = \"ratio\"\nover = \"ddp.overlap\"\nmin = 1.16").holds);
  const Judged broken = judge(vary, "claim = \"ratio\"\nover = \"overlap\"\nmin = 1.75");
  EXPECT_FALSE(broken.holds);
  EXPECT_THAT(broken.text, AllOf(HasSubstr("step_ms at false is 1.4 and at true 1.2"),
                                 HasSubstr("short by 0.583333")));
}

TEST(TimingStudyTest, ATrendHoldsAtEveryStepAndInAll) {
  const std::string vary = "\"network.bandwidth_gbit_per_s\" = [2.0, 8.0, 80.0]";
  const std::string over = "over = \"network.bandwidth_gbit_per_s\"\n";
  EXPECT_TRUE(judge(vary, "claim = \"falls\"\nmin = 2.0\n" + over).holds);
  EXPECT_THAT(judge(vary, "claim = \"falls\"\nmin = 20.0\n" + over).text, HasSubstr("short by"));
  const Judged broken = judge(vary, "claim = \"rises\"\n" + over);
  EXPECT_FALSE(broken.holds);
  EXPECT_THAT(broken.text, HasSubstr("step_ms falls from 3.6 at 2.0 to 1.2 at 8.0, by 66.7 %"));
  const Judged still = judge("seed = [1, 2]", "claim = \"rises\"\nover = \"seed\"\n");
  EXPECT_FALSE(still.holds);
  EXPECT_THAT(still.text, HasSubstr("expected it to rise"));
}

// 3600, 640 and 1200 us: backward and then 2 ns, 0.1 ns or 1 ns per byte.
TEST(TimingStudyTest, AMinimumIsInteriorOnlyIfBothEndsAreWorse) {
  const std::string key = "network.bandwidth_gbit_per_s";
  const std::string claim = "claim = \"interior_minimum\"\nover = \"" + key + "\"\n";
  const std::string vary = "\"" + key + "\" = ";
  const Judged broken = judge(vary + "[80.0, 2.0, 8.0]", claim);
  EXPECT_FALSE(broken.holds);
  EXPECT_THAT(broken.text, HasSubstr("an end of the axis"));
  EXPECT_FALSE(judge("seed = [1, 2, 3]", "claim = \"interior_minimum\"\nover = \"seed\"").holds)
      << "an end that is as good as the least";
  EXPECT_TRUE(judge(vary + "[2.0, 80.0, 8.0]", claim + "min = 1.87\n").holds);
  EXPECT_FALSE(judge(vary + "[2.0, 80.0, 8.0]", claim + "min = 1.88\n").holds);
}

TEST(TimingStudyTest, OnlyLeavesOutPointsAndALineMustBeLeft) {
  const std::string vary = "\"world.ranks\" = [2, 4]\n\"ddp.overlap\" = [false, true]";
  const std::string claim = "claim = \"ratio\"\nover = \"ddp.overlap\"\nmin = 1.0\n";
  EXPECT_TRUE(judge(vary, claim + "only = \"ranks=2\"").holds);
  const Judged none = judge(vary, claim + "only = \"overlap=true\"");
  EXPECT_FALSE(none.holds);
  EXPECT_THAT(none.text, HasSubstr("no line to judge"));
}

TEST(TimingStudyTest, AsACaseItIsAsExpectedIfAllClaimsHold) {
  const std::string good = "\n[[expect]]\nclaim = \"bounds\"\nmax = 2.0\n";
  const std::string bad = "\n[[expect]]\nclaim = \"bounds\"\nmax = 1.0\n";
  const harness::CaseResult passed = judge_study(study_of(kHead + good));
  EXPECT_TRUE(passed.as_expected);
  EXPECT_EQ(passed.outcome.kind, harness::OutcomeKind::kPredicted);
  EXPECT_THAT(passed.outcome.reason, HasSubstr("holds: bounds"));
  const harness::CaseResult failed = judge_study(study_of(kHead + good + bad));
  EXPECT_FALSE(failed.as_expected);
  EXPECT_THAT(failed.complaints, ElementsAre(HasSubstr("over by 0.2 (20 %)")));
}

TEST(TimingStudyTest, TheBestCapIsNoWorseThanAnyOther) {
  TimingStudy study = study_of(kHead);
  sim::timing::Setup setup = study.points[0].setup;
  setup.network.overhead_us = 50.0;
  const harness::BestCap best = best_bucket_cap(setup);
  EXPECT_LE(best.cap_bytes, 400'000);
  EXPECT_EQ(best.step_ms, 1.3);
  EXPECT_EQ(best.given_ms, 1.3);
  setup.ddp.first_bucket_cap_bytes = 1 << 20;
  setup.network.overhead_us = 5'000.0;  // One collective is best: 600 + 5000 + 800 us.
  EXPECT_EQ(best_bucket_cap(setup).step_ms, 6.4);
}

TEST(TimingStudyTest, JsonHasEveryQuantityTheSetupAndTheTimeLine) {
  const TimingStudy study = study_of(kHead + "[[expect]]\nclaim = \"bounds\"\nmax = 2.0\n");
  const auto predictions = predict(study);
  const auto json =
      nlohmann::json::parse(study_to_json(study, predictions, judge_claims(study, predictions)));
  EXPECT_EQ(json.at("claims").at(0).at("holds"), true);
  const auto& point = json.at("points").at(0);
  EXPECT_EQ(point.at("step_ms"), 1.2);
  EXPECT_EQ(point.at("setup").at("network").at("bandwidth_gbit_per_s"), 8.0);
  EXPECT_EQ(point.at("setup").at("layer").at(0).at("count"), 2);
  ASSERT_THAT(point.at("timeline"), SizeIs(2));
  EXPECT_EQ(point.at("timeline").at(1).at("end_ms"), 1.2);
}

TEST(TimingStudyTest, TextOfAPoint) {
  const TimingStudy study = study_of(kHead);
  expect_golden("timing_point.txt", describe_point(study.points[0].setup, predict(study)[0]));
}

TEST(TimingStudyTest, TextOfPointsAndClaims) {
  const TimingStudy study = study_of(kHead + R"([vary]
"ddp.bucket_cap_bytes" = [1, 800_000]
[[expect]]
claim = "rises"
over = "bucket_cap_bytes"
min = 1.0
[[expect]]
claim = "bounds"
max = 1.3
)");
  const auto predictions = predict(study);
  expect_golden("timing_points.txt", describe_points(study, predictions) +
                                         describe_claims(judge_claims(study, predictions), false));
}

// The times are the machine's; that there are some, and that they can be read back, is ours.
TEST(TimingStudyTest, MeasuredLayersCanBePasted) {
  TimingStudy study =
      study_of("schema = 1\nkind = \"timing\"\n[[layer]]\nblock = \"linear 64 32\"\n");
  sim::timing::Setup setup = study.points[0].setup;
  measure_blocks(setup, 0.0);
  EXPECT_GT(setup.layers[0].forward_us, 0.0);
  EXPECT_GT(setup.layers[0].backward_us.value(), 0.0);
  const TimingStudy again = study_of("schema = 1\nkind = \"timing\"\n" + layers_text(setup));
  EXPECT_EQ(again.points[0].setup.layers[0].forward_us, setup.layers[0].forward_us);
  EXPECT_EQ(again.points[0].setup.layers[0].backward_us, setup.layers[0].backward_us);
  EXPECT_THAT(again.points[0].setup.layers[0].parameters, ElementsAre(2048, 32));
}

}  // namespace
}  // namespace lockstep::test
