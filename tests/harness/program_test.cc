// SPDX-License-Identifier: Apache-2.0
// What a case compiles to, for the subject and for both references.
#include "harness/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "harness/scenario.h"

namespace lockstep::harness {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Case case_of(const std::string& text) {
  return parse_scenario_text("schema = 1\ntitle = \"t\"\n" + text, "test.toml").front().value;
}

std::vector<bool> syncs_of(const Program& program, std::size_t rank, std::size_t step) {
  std::vector<bool> syncs;
  for (const MicroBatch& micro : program.ranks[rank].steps[step].micro_batches) {
    syncs.push_back(micro.sync);
  }
  return syncs;
}

TEST(ProgramTest, DealsEachSampleOfAnEpochToOneRank) {
  const Case value = case_of(
      "[world]\nranks = 4\n[data]\nsamples = 16\n[train]\nsteps = 1\n"
      "[expect]\noutcome = \"within_bound\"\n");
  std::vector<std::int64_t> all;
  for (const RankProgram& rank : compile_subject(value).ranks) {
    const auto& samples = rank.steps[0].micro_batches[0].parts[0].samples;
    EXPECT_EQ(samples.size(), 4U);
    all.insert(all.end(), samples.begin(), samples.end());
  }
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i], static_cast<std::int64_t>(i));
  }
}

TEST(ProgramTest, SerialBatchIsTheConcatenationOfTheRanks) {
  const Case value = case_of(
      "[world]\nranks = 3\n[train]\nmicro_batches = 2\n"
      "[expect]\noutcome = \"within_bound\"\n");
  const Program ranks = compile_replay(value);
  const Program serial = compile_serial(value);
  std::vector<std::int64_t> expected;
  for (const RankProgram& rank : ranks.ranks) {
    for (const MicroBatch& micro : rank.steps[1].micro_batches) {
      const auto& samples = micro.parts[0].samples;
      expected.insert(expected.end(), samples.begin(), samples.end());
    }
  }
  ASSERT_EQ(serial.ranks.size(), 1U);
  ASSERT_EQ(serial.ranks[0].steps[1].micro_batches.size(), 1U);
  const auto& parts = serial.ranks[0].steps[1].micro_batches[0].parts;
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].samples, expected);
  EXPECT_EQ(parts[0].mean_over, 12);
}

TEST(ProgramTest, SerialBatchKeepsRoutesApart) {
  const Case value = case_of(R"(
[model]
kind = "graph"
blocks = { a = "linear 4 4", b = "linear 4 4" }
[[at]]
rank = 1
step = 0
skip = ["b"]
[ddp]
find_unused_parameters = true
[expect]
outcome = "within_bound"
)");
  const Program serial = compile_serial(value);
  const auto& parts = serial.ranks[0].steps[0].micro_batches[0].parts;
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_THAT(parts[0].route.skip, IsEmpty());
  EXPECT_THAT(parts[1].route.skip, ElementsAre("b"));
}

TEST(ProgramTest, SamplesAndWindowsOfTheirOwnAndWhatAMeanIsOver) {
  const std::string uneven = R"(
[train]
batch_per_rank = 8
micro_batches = 2
MEAN
[[at]]
rank = 1
micro_batch = 1
samples = 1
[[at]]
step = 2
micro_batches = 1
[expect]
outcome = "within_bound"
)";
  const auto with = [&uneven](const std::string& mean) {
    std::string text = uneven;
    return case_of(text.replace(text.find("MEAN"), 4, "mean_over = \"" + mean + "\""));
  };
  const auto part = [](const Program& program, std::size_t rank, std::size_t step,
                       std::size_t micro) {
    return program.ranks[rank].steps[step].micro_batches[micro].parts[0];
  };
  const Program each = compile_subject(with("micro_batch"));
  EXPECT_EQ(part(each, 0, 0, 1).samples.size(), 4U);
  EXPECT_EQ(part(each, 1, 0, 1).samples.size(), 1U);
  EXPECT_EQ(part(each, 1, 0, 1).mean_over, 0.0);
  EXPECT_EQ(each.ranks[1].steps[0].loss_scale, 0.5);
  EXPECT_EQ(each.ranks[1].steps[2].loss_scale, 1.0);
  EXPECT_EQ(each.ranks[1].steps[2].micro_batches.size(), 1U);
  EXPECT_TRUE(each.ranks[1].steps[2].micro_batches[0].sync);
  const Program window = compile_replay(with("window"));
  EXPECT_EQ(part(window, 0, 0, 0).mean_over, 8.0);
  EXPECT_EQ(part(window, 1, 0, 0).mean_over, 5.0);
  EXPECT_EQ(window.ranks[1].steps[0].loss_scale, 1.0);
  EXPECT_EQ(part(compile_replay(with("all")), 1, 0, 0).mean_over, 6.5);  // 13 / 2 ranks
  const Program serial = compile_serial(with("micro_batch"));
  EXPECT_EQ(serial.ranks[0].steps[0].micro_batches[0].parts[0].samples.size(), 13U);
  EXPECT_EQ(serial.ranks[0].steps[0].micro_batches[0].parts[0].mean_over, 13.0);
}

TEST(ProgramTest, AWindowThatOneRankShortensIsItsMistake) {
  const Case value = case_of(
      "[train]\nmicro_batches = 2\n[[at]]\nrank = 1\nstep = 1\nmicro_batches = 1\n"
      "[expect]\noutcome = \"within_bound\"\n");
  EXPECT_EQ(compile_subject(value).ranks[1].steps[1].micro_batches.size(), 1U);
  EXPECT_EQ(compile_replay(value).ranks[1].steps[1].micro_batches.size(), 2U);
}

TEST(ProgramTest, MistakesOfTheDataScriptTakeOtherSamplesThanTheReferences) {
  const auto samples = [](const std::string& kind, std::size_t rank, std::size_t step) {
    Case value = case_of("[data]\nsamples = 8\n[expect]\noutcome = \"within_bound\"\n");
    if (!kind.empty()) {
      value.faults.emplace_back().kind = kind;
      value.faults.back().ranks = {1};
    }
    return compile_subject(value).ranks[rank].steps[step].micro_batches[0].parts[0].samples;
  };
  EXPECT_NE(samples("shuffle_seed", 1, 0), samples("", 1, 0));
  EXPECT_EQ(samples("shuffle_seed", 0, 0), samples("", 0, 0));
  EXPECT_NE(samples("", 1, 1), samples("", 1, 0));  // an epoch is a step
  EXPECT_EQ(samples("epoch_not_set", 1, 1), samples("", 1, 0));
}

TEST(ProgramTest, SyncFollowsTheScript) {
  const std::string window = "[train]\nbatch_per_rank = 3\nmicro_batches = 3\n";
  const std::string bound = "[expect]\noutcome = \"within_bound\"\n";
  EXPECT_THAT(syncs_of(compile_subject(case_of(window + bound)), 0, 0),
              ElementsAre(false, false, true));
  EXPECT_THAT(syncs_of(compile_subject(case_of(window + "sync_on = \"every\"\n" + bound)), 0, 0),
              ElementsAre(true, true, true));
  // H1: the flag is read in forward.
  const Case late = case_of(window + "no_sync_covers = \"backward\"\n" + bound);
  EXPECT_THAT(syncs_of(compile_subject(late), 0, 0), ElementsAre(true, true, true));
}

TEST(ProgramTest, ReferencesDoWhatWasMeant) {
  const Case value = case_of(R"(
[train]
batch_per_rank = 4
micro_batches = 2
[[fault]]
kind = "sync_before_last_micro_batch"
[expect]
outcome = "diverged"
)");
  EXPECT_THAT(syncs_of(compile_subject(value), 0, 0), ElementsAre(true, false));
  EXPECT_THAT(syncs_of(compile_replay(value), 0, 0), ElementsAre(false, true));
  EXPECT_EQ(compile_subject(value).ranks[0].steps[0].faults.size(), 1U);
  EXPECT_THAT(compile_replay(value).ranks[0].steps[0].faults, IsEmpty());
}

TEST(ProgramTest, ReferencesKnowOnlyWhatAllRanksDo) {
  const Case value = case_of(R"(
[[at]]
step = 1
lr = 0.5
[[at]]
rank = 1
step = 1
lr = 0.25
[[at]]
step = 1
sleep_ms = 1
[expect]
outcome = "diverged"
)");
  EXPECT_THAT(compile_subject(value).ranks[1].steps[1].events, ElementsAre(0, 1, 2));
  EXPECT_THAT(compile_replay(value).ranks[1].steps[1].events, ElementsAre(0));
}

}  // namespace
}  // namespace lockstep::harness
