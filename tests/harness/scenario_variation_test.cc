// SPDX-License-Identifier: Apache-2.0
// Axes: counts, names, what they set, and what is wrong with them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/harness/scenario_findings.h"

namespace lockstep::test {
namespace {

using harness::Case;
using harness::NamedCase;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// `body` from line 3 on.
std::string file_with(const std::string& body) {
  return "schema = 1\nexpect.outcome = \"within_bound\"\n" + body;
}

std::vector<NamedCase> cases_of(const std::string& body) {
  return harness::parse_scenario_text(file_with(body), "case.toml");
}

std::vector<std::string> names_of(const std::string& body) {
  std::vector<std::string> names;
  for (const NamedCase& named : cases_of(body)) names.push_back(named.name);
  return names;
}

TEST(ScenarioVariationTest, AFileWithoutAxesIsOneNamelessCase) {
  EXPECT_THAT(names_of(""), ElementsAre(""));
  EXPECT_THAT(names_of("[vary]\n"), ElementsAre(""));
}

TEST(ScenarioVariationTest, TakesTheProductInFileOrderTheLastAxisFastest) {
  EXPECT_THAT(names_of("[vary]\n\"world.ranks\" = [2, 1]\nseed = { first = 5, count = 2 }\n"),
              ElementsAre("ranks=2,seed=5", "ranks=2,seed=6", "ranks=1,seed=5", "ranks=1,seed=6"));
}

TEST(ScenarioVariationTest, SetsWhatItNames) {
  const std::vector<NamedCase> cases = cases_of(
      "seed = 9\n[[at]]\nskip = [\"layer0\"]\n[model]\nwidths = [4, 4, 4]\n[vary]\n"
      "\"world.ranks\" = [1]\n\"train.optimizer.lr\" = [0.5]\n\"at.0.skip\" = "
      "[[\"layer0\", \"act0\"]]\n\"data.shuffle\" = [false]\n");
  ASSERT_THAT(cases, SizeIs(1));
  const Case& value = cases[0].value;
  EXPECT_EQ(value.seed, 9U);
  EXPECT_EQ(value.world.ranks, 1);
  EXPECT_EQ(value.train.optimizer.lr, 0.5);
  EXPECT_FALSE(value.data.shuffle);
  ASSERT_THAT(value.at, SizeIs(1));
  EXPECT_THAT(value.at[0].skip, ElementsAre("layer0", "act0"));
  EXPECT_EQ(cases[0].name, "ranks=1,lr=0.5,skip=[layer0,act0],shuffle=false");
}

TEST(ScenarioVariationTest, ReplacesABlockWithoutMovingIt) {
  const std::vector<NamedCase> cases = cases_of(
      "[model]\nkind = \"graph\"\nblocks = { b = \"linear 4 4\", a = \"relu\" }\n"
      "[vary]\n\"model.blocks.b\" = [\"linear 4 4\", \"linear 8 4\"]\n");
  ASSERT_THAT(cases, SizeIs(2));
  EXPECT_EQ(cases[1].value.model.blocks[0].first, "b");
  EXPECT_EQ(cases[1].value.model.blocks[0].second, "linear 8 4");
  EXPECT_EQ(cases[1].name, "b=linear 8 4");
}

TEST(ScenarioVariationTest, ReplacesWholeTables) {
  const std::vector<NamedCase> cases = cases_of(
      "[train.optimizer]\nkind = \"sgd\"\nmomentum = 0.5\n[vary]\n\"train.optimizer\" = "
      "[{ kind = \"adam\" }, { kind = \"sgd\", lr = 1 }]\n");
  ASSERT_THAT(cases, SizeIs(2));
  EXPECT_EQ(cases[0].name, "optimizer={kind=adam}");
  EXPECT_EQ(cases[1].value.train.optimizer.momentum, 0.0);
}

TEST(ScenarioVariationTest, NamesUseTheShortestEndThatTellsKeysApart) {
  EXPECT_THAT(names_of("[vary]\n\"train.optimizer.kind\" = [\"sgd\"]\n\"model.kind\" = [\"mlp\"]\n"
                       "world.ranks = [1]\n"),
              ElementsAre("optimizer.kind=sgd,model.kind=mlp,ranks=1"));
  EXPECT_THAT(names_of("[[at]]\nlr = 1\n[[at]]\nlr = 1\n[vary]\nat.0.lr = [2]\nat.1.lr = [3]\n"),
              ElementsAre("at.0.lr=2,at.1.lr=3"));
}

TEST(ScenarioVariationTest, KeysNeedNoQuotes) {
  EXPECT_THAT(names_of("[vary]\nworld.ranks = [1, 2]\nschedule.policy = [\"random\"]\n"
                       "train.steps = { first = 2, count = 2 }\n"),
              SizeIs(4));
}

TEST(ScenarioVariationTest, LinkedKeysChangeTogether) {
  const std::vector<NamedCase> cases = cases_of(
      "[vary]\nseed = [1, 2]\n[[vary.linked]]\n\"world.ranks\" = [2, 4]\n"
      "\"expect.bucket_all_reduces\" = [3, 6]\n");
  ASSERT_THAT(cases, SizeIs(4));
  EXPECT_EQ(cases[1].name, "seed=1,ranks=4,bucket_all_reduces=6");
  EXPECT_EQ(cases[1].value.world.ranks, 4);
  EXPECT_EQ(cases[1].value.expect.bucket_all_reduces, 6);
  EXPECT_EQ(cases[2].value.expect.bucket_all_reduces, 3);
}

TEST(ScenarioVariationTest, SampleAndPairwiseThinTheProduct) {
  const std::string axes = "world.ranks = [1, 2, 3]\ntrain.steps = [1, 2, 3]\nseed = [1, 2, 3]\n";
  EXPECT_THAT(names_of("[vary]\n" + axes), SizeIs(27));
  EXPECT_THAT(names_of("[vary]\nsample = 5\n" + axes), SizeIs(5));
  EXPECT_THAT(names_of("[vary]\nsample = 50\n" + axes), SizeIs(27));
  EXPECT_THAT(names_of("[vary]\npairwise = false\n" + axes), SizeIs(27));
  const auto pairwise = names_of("[vary]\npairwise = true\n" + axes);
  EXPECT_GE(pairwise.size(), 9U);
  EXPECT_LE(pairwise.size(), 15U);
  // The seed of the file, not of an axis, draws the sample.
  EXPECT_NE(names_of("seed = 2\n[vary]\nsample = 5\n" + axes),
            names_of("[vary]\nsample = 5\n" + axes));
}

TEST(ScenarioVariationTest, RefusesFormsItDoesNotKnow) {
  EXPECT_THAT(findings_of(file_with("vary = 3\n")),
              ElementsAre(finding("3:8", {"vary is 3", "expected a table"})));
  EXPECT_THAT(findings_of(file_with("[vary]\nseed = 3\n")),
              ElementsAre(finding("4:8", {"seed is 3", "expected an array of values"})));
  EXPECT_THAT(findings_of(file_with("[vary]\nseed = []\n")),
              ElementsAre(finding("4:8", {"no values"})));
  EXPECT_THAT(findings_of(file_with("[vary]\nseed = { first = 1 }\n")),
              ElementsAre(finding("4:8", {"seed.count is missing"})));
  EXPECT_THAT(findings_of(file_with("[vary]\nseed = { first = 1, count = 0 }\n")),
              ElementsAre(finding("4:8", {"count = 0", "from 1 to 20000"})));
  EXPECT_THAT(findings_of(file_with("[vary]\nseed = { first = 1, count = 2, stepp = 2 }\n")),
              ElementsAre(finding("4:32", {"unknown key 'stepp'"})));
  EXPECT_THAT(findings_of(file_with("[vary]\npairwise = 1\nsample = 0\n")),
              ElementsAre(finding("4:12", {"expected true or false"}),
                          finding("5:10", {"vary.sample is 0", "from 1 to 20000"})));
  EXPECT_THAT(findings_of(file_with("[vary]\npairwise = true\nsample = 2\n")),
              ElementsAre(finding("5:1", {"both pairwise and sample"})));
  EXPECT_THAT(findings_of(file_with("[vary]\nlinked = [3]\n")),
              ElementsAre(finding("4:11", {"vary.linked"})));
}

TEST(ScenarioVariationTest, RefusesPathsThatLeadNowhere) {
  EXPECT_THAT(findings_of(file_with("[vary]\n\"world.rnaks\" = [1]\n")),
              ElementsAre(finding("4:1", {"unknown key 'rnaks'", "did you mean 'ranks'?"})));
  EXPECT_THAT(findings_of(file_with("[vary]\n\"at.0.lr\" = [1]\n")),
              ElementsAre(finding("4:1", {"at.0.lr leads nowhere", "no element '0'"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nlr = 1\n[vary]\n\"at.1.lr\" = [1]\n")),
              ElementsAre(finding("6:1", {"'1' is no index into an array of 1"})));
  EXPECT_THAT(findings_of(file_with("seed = 1\n[vary]\n\"seed.x\" = [1]\n")),
              ElementsAre(finding("5:1", {"'x' is inside an integer, which has no keys"})));
  EXPECT_THAT(findings_of(file_with("[vary]\nschema = [1, 2]\n")),
              ElementsAre(finding("4:1", {"'schema' cannot vary"})));
}

TEST(ScenarioVariationTest, RefusesAxesThatDisagree) {
  EXPECT_THAT(findings_of(file_with("[vary]\nseed = [1, 1]\n")),
              ElementsAre(finding("4:12", {"takes the value 1 twice"})));
  EXPECT_THAT(findings_of(file_with("[vary]\n\"world.ranks\" = [1]\nworld.ranks = [2]\n")),
              ElementsAre(finding("5:7", {"is also the axis of line 4"})));
  EXPECT_THAT(findings_of(file_with("[vary]\n\"train.optimizer\" = [{ kind = \"sgd\" }]\n"
                                    "\"train.optimizer.lr\" = [1]\n")),
              ElementsAre(finding("5:1", {"overlaps with the axis of line 4"})));
  EXPECT_THAT(findings_of(file_with("[[vary.linked]]\n\"world.ranks\" = [1, 2]\nseed = [1]\n")),
              ElementsAre(finding("5:8", {"seed has 1 values and world.ranks has 2"})));
}

TEST(ScenarioVariationTest, ReportsAWrongValueOnce) {
  EXPECT_THAT(
      findings_of(file_with("[vary]\n\"world.ranks\" = [1, 0, \"x\"]\nseed = { first = 1, "
                            "count = 50 }\n")),
      ElementsAre(finding("4:21", {"world.ranks is 0"}), finding("4:24", {"the string \"x\""})));
  EXPECT_THAT(findings_of(file_with("[vary]\n\"world.ranks\" = { first = 60, count = 50 }\n")),
              ElementsAre(finding("4:17", {"world.ranks is 65"})));
}

TEST(ScenarioVariationTest, NamesTheCaseOfAContradiction) {
  EXPECT_THAT(
      findings_of(file_with("[train]\nbatch_per_rank = 4\n[vary]\n\"train.micro_batches\" = [1, 2, "
                            "3]\nseed = { first = 1, count = 4 }\n")),
      ElementsAre(finding("6:32", {"micro_batches = 3 does not divide batch_per_rank = 4",
                                   "(case micro_batches=3,seed=1 and 3 more)"})));
  EXPECT_THAT(
      findings_of(file_with("[[at]]\nrank = 2\nlr = 1\n[vary]\n\"world.ranks\" = [2, 3]\n")),
      ElementsAre(finding("4:1", {"rank 2 does not exist", "(case ranks=2)"})));
}

TEST(ScenarioVariationTest, RefusesMoreCasesThanAFileMayHave) {
  const std::string huge = "[vary]\nseed = { first = 1, count = 20000 }\ntrain.steps = [1, 2]\n";
  EXPECT_THAT(findings_of(file_with(huge)),
              ElementsAre(finding("3:2", {"40000 cases", "at most 20000", "sample = N"})));
  EXPECT_THAT(cases_of(huge + "sample = 3\n"), SizeIs(3));
}

TEST(ScenarioVariationTest, RefusesMoreValuesThanAllCasesMayHave) {
  std::string inputs;
  for (int i = 0; i < 10'000; ++i) inputs += "1.0,";
  const std::string huge = "data.inputs = [" + inputs + "]\n[vary]\nseed = { first = 1, count = ";
  EXPECT_THAT(findings_of(file_with(huge + "400 }\n")),
              ElementsAre(finding("4:2", {"400 cases of 10006 values each", "at most 399"})));
  EXPECT_THAT(cases_of(huge + "399 }\n"), SizeIs(399));
}

TEST(ScenarioVariationTest, ASpanIsAsWrongAsItsFirstWrongInteger) {
  EXPECT_THAT(findings_of(file_with("[vary]\n\"world.ranks\" = { first = 0, count = 3 }\n")),
              ElementsAre(finding("4:17", {"world.ranks is 0"})));
  EXPECT_THAT(findings_of(file_with("[vary]\n\"world.ranks\" = { first = -1, count = 9 }\n")),
              ElementsAre(finding("4:17", {"world.ranks is -1"})));
}

TEST(ScenarioVariationTest, LinkedKeysHaveValues) {
  EXPECT_THAT(findings_of(file_with("[[vary.linked]]\nworld = {}\n")),
              ElementsAre(finding("3:1", {"vary.linked has no values"})));
}

}  // namespace
}  // namespace lockstep::test
