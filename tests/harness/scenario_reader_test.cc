// SPDX-License-Identifier: Apache-2.0
// Syntax, unknown keys, types, ranges and names: each with its exact place.
#include <gtest/gtest.h>

#include "tests/harness/scenario_findings.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// `body` from line 3 on, in a file that is good otherwise.
std::string file_with(const std::string& body) {
  return "schema = 1\nexpect.outcome = \"within_bound\"\n" + body;
}

TEST(ScenarioReaderTest, AcceptsAFileThatSaysOnlyItsSchema) {
  EXPECT_THAT(findings_of("schema = 1\nworld.ranks = 1\n"), IsEmpty());
}

TEST(ScenarioReaderTest, SaysThatAnEmptyFileSaysNothing) {
  EXPECT_THAT(findings_of(""), ElementsAre(finding("1:1", {"says nothing", "schema = 1"})));
  EXPECT_THAT(findings_of("# only a comment\n"), ElementsAre(finding("1:1", {"says nothing"})));
}

TEST(ScenarioReaderTest, AsksForTheSchemaVersion) {
  EXPECT_THAT(findings_of("title = \"x\"\nworld.ranks = 1\n"),
              ElementsAre(finding("1:1", {"'schema' is missing", "schema = 1"})));
  EXPECT_THAT(findings_of("schema = 2\nworld.ranks = 1\n"),
              ElementsAre(finding("1:10", {"schema is 2", "expected 1"})));
  EXPECT_THAT(findings_of("schema = \"1\"\nworld.ranks = 1\n"),
              ElementsAre(finding("1:10", {"the string \"1\"", "expected 1"})));
}

TEST(ScenarioReaderTest, PlacesSyntaxErrors) {
  EXPECT_THAT(findings_of(file_with("[world\n")), ElementsAre(finding("3:7", {"not valid TOML"})));
  EXPECT_THAT(findings_of(file_with("seed = 1\nseed = 2\n")),
              ElementsAre(finding("4:8", {"not valid TOML", "redefine"})));
  EXPECT_THAT(findings_of(file_with("seed = 99999999999999999999\n")),
              ElementsAre(finding("3:28", {"not valid TOML"})));
  EXPECT_THAT(findings_of(file_with("title = \"\xff\"\n")),
              ElementsAre(finding("3:9", {"not valid TOML", "utf-8"})));
}

// Each point is a table in a table, and each of those a call of everything that walks through them.
TEST(ScenarioReaderTest, RefusesKeysThatAreDeeperThanAnyIs) {
  std::string deep;
  for (int i = 0; i < 1'000'000; ++i) deep += "a.";
  EXPECT_THAT(findings_of(file_with(deep + "b = 1\n")),
              ElementsAre(finding("3:34", {"a key of more than 16 points"})));
  EXPECT_THAT(findings_of(file_with("[" + deep + "b]\n")),
              ElementsAre(finding("3:35", {"a key of more than 16 points"})));
  EXPECT_THAT(findings_of(file_with("world = { " + deep + "b = 1 }\n")),
              ElementsAre(finding("3:44", {"a key of more than 16 points"})));
  EXPECT_THAT(findings_of(file_with("seed = " + std::string(1'000, '[') + "\n")),
              ElementsAre(finding("3:72", {"not valid TOML"})));
}

TEST(ScenarioReaderTest, PointsOutsideOfKeysAreNotCounted) {
  const std::string points(100, '.');
  for (const std::string& text : {"# " + points, "title = \"" + points + "\"",
                                  "title = '" + points + "'", "title = \"\\\"" + points + "\"",
                                  "title = \"\"\"\n" + points + "\"\n" + points + "\"\"\"\"",
                                  "title = '''" + points + "\n\\" + points + "'''"}) {
    EXPECT_THAT(findings_of("schema = 1\n" + text + "\nexpect.outcome = \"within_bound\"\n"),
                IsEmpty())
        << text;
  }
  std::string numbers;
  for (int i = 0; i < 100; ++i) numbers += "0.5, ";
  EXPECT_THAT(findings_of(file_with("data.inputs = [" + numbers + "]\n")), IsEmpty());
}

// With a comparison of each with all others this would take minutes.
TEST(ScenarioReaderTest, LongListsAreReadInOneGo) {
  std::string steps;
  for (int i = 0; i < 100'000; ++i) steps += std::to_string(i) + ",";
  EXPECT_THAT(
      findings_of(file_with("train.steps = 100_000\n[[at]]\nlr = 0.5\nsteps = [" + steps + "]\n")),
      IsEmpty());
  EXPECT_THAT(
      findings_of(file_with("train.steps = 100_000\n[[at]]\nlr = 0.5\nsteps = [" + steps + "7]\n")),
      ElementsAre(::testing::HasSubstr("at.0.steps has 7 twice")));
}

TEST(ScenarioReaderTest, NamesTheNearestKeyOfTheTable) {
  EXPECT_THAT(findings_of(file_with("[world]\nrnaks = 2\n")),
              ElementsAre(finding("4:1", {"unknown key 'rnaks' in world", "expected one of ranks",
                                          "did you mean 'ranks'?"})));
  EXPECT_THAT(findings_of(file_with("[wrold]\nranks = 2\n")),
              ElementsAre(finding("3:2", {"unknown key 'wrold'", "did you mean 'world'?"})));
  EXPECT_THAT(findings_of(file_with("[train]\noptimizer = { kind = \"sgd\", lear = 1 }\n")),
              ElementsAre(finding("4:29", {"unknown key 'lear' in train.optimizer"})));
}

TEST(ScenarioReaderTest, SendsAMisplacedKeyHome) {
  EXPECT_THAT(findings_of(file_with("[train]\nbucket_cap_bytes = 64\n")),
              ElementsAre(finding("4:1", {"unknown key", "belongs to [ddp]"})));
  EXPECT_THAT(findings_of(file_with("ranks = 2\n")),
              ElementsAre(finding("3:1", {"unknown key", "belongs to [world]"})));
}

TEST(ScenarioReaderTest, SaysWhichTypeWasExpectedAndFound) {
  EXPECT_THAT(findings_of(file_with("[world]\nranks = \"four\"\n")),
              ElementsAre(finding("4:9", {"world.ranks is the string \"four\"",
                                          "expected an integer from 1 to 64"})));
  EXPECT_THAT(findings_of(file_with("[world]\nranks = 2.0\n")),
              ElementsAre(finding("4:9", {"is 2.0", "expected an integer"})));
  EXPECT_THAT(findings_of(file_with("title = 3\n")),
              ElementsAre(finding("3:9", {"title is 3", "expected a string"})));
  EXPECT_THAT(findings_of(file_with("[data]\nexact = 1\n")),
              ElementsAre(finding("4:9", {"is 1", "expected true or false"})));
  EXPECT_THAT(findings_of(file_with("[train]\noptimizer = \"sgd\"\n")),
              ElementsAre(finding("4:13", {"the string \"sgd\"", "expected a table"})));
  EXPECT_THAT(findings_of(file_with("world = 3\n")),
              ElementsAre(finding("3:9", {"world is 3", "expected a table"})));
  EXPECT_THAT(findings_of(file_with("[model]\nwidths = 8\n")),
              ElementsAre(finding("4:10", {"is 8", "expected an array"})));
  EXPECT_THAT(findings_of(file_with("[model]\nwidths = [8, true]\n")),
              ElementsAre(finding("4:14", {"model.widths.1 is the boolean true"})));
  EXPECT_THAT(findings_of(file_with("[model]\nblocks = [\"linear 4 4\"]\n")),
              ElementsAre(finding("4:10", {"is an array", "expected a table of name"})));
  EXPECT_THAT(findings_of(file_with("[model]\nforward = [\"a\", 3]\n")),
              ElementsAre(finding("4:17", {"is 3", "name of a block or an array"})));
  EXPECT_THAT(findings_of(file_with("title = 2020-01-01\n")),
              ElementsAre(finding("3:9", {"is a date or time", "expected a string"})));
}

TEST(ScenarioReaderTest, SaysWhichRangeWasLeft) {
  EXPECT_THAT(findings_of(file_with("[world]\nranks = 0\n")),
              ElementsAre(finding("4:9", {"is 0", "from 1 to 64"})));
  EXPECT_THAT(findings_of(file_with("[world]\nranks = 1_000_000_000\n")),
              ElementsAre(finding("4:9", {"is 1000000000", "from 1 to 64"})));
  EXPECT_THAT(findings_of(file_with("seed = -1\n")),
              ElementsAre(finding("3:8", {"is -1", "at least 0"})));
  EXPECT_THAT(findings_of(file_with("[train]\noptimizer.lr = -0.5\n")),
              ElementsAre(finding("4:16", {"is -0.5", "a finite number, at least 0"})));
  EXPECT_THAT(findings_of(file_with("[train]\noptimizer.lr = nan\n")),
              ElementsAre(finding("4:16", {"is nan", "a finite number"})));
  EXPECT_THAT(findings_of(file_with("[model]\nwidths = [8]\n")),
              ElementsAre(finding("4:10", {"has 1 items", "2 to 1000"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nraise = \"\"\n")),
              ElementsAre(finding("4:9", {"the string \"\"", "not empty"})));
}

TEST(ScenarioReaderTest, NamesTheNearestChoice) {
  EXPECT_THAT(findings_of(file_with("[schedule]\npolicy = \"roundrobin\"\n")),
              ElementsAre(finding("4:10", {"the string \"roundrobin\"",
                                           "one of \"round_robin\", \"random\", \"pct\"",
                                           "did you mean 'round_robin'?"})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"sum_not_meen\"\n")),
              ElementsAre(finding("4:8", {"did you mean 'sum_not_mean'?"})));
}

TEST(ScenarioReaderTest, ReportsEveryMistakeOfAFileInFileOrder) {
  EXPECT_THAT(
      findings_of(file_with("[world]\nranks = 0\nshedule = \"random\"\n"
                            "[train]\nsteps = \"3\"\nbatch_per_rank = 6\n"
                            "micro_batches = 4\n")),
      ElementsAre(finding("4:9", {"is 0"}), finding("5:1", {"unknown key 'shedule'"}),
                  finding("7:9", {"the string \"3\""}), finding("9:1", {"does not divide"})));
}

TEST(ScenarioReaderTest, DoesNotReportWhatOnlyFollowsFromAnotherMistake) {
  // batch_per_rank keeps its default of 4, which 8 does not divide; the type is the one mistake.
  EXPECT_THAT(findings_of(file_with("[train]\nbatch_per_rank = \"8\"\nmicro_batches = 8\n")),
              ElementsAre(finding("4:18", {"the string \"8\""})));
  EXPECT_THAT(findings_of(file_with("[train]\nbatch_per_rnk = 8\nmicro_batches = 8\n")),
              ElementsAre(finding("4:1", {"did you mean 'batch_per_rank'?"})));
  // Without the mistyped kind this is an mlp, which has no block of that name.
  EXPECT_THAT(findings_of(file_with("[model]\nkind = \"grahp\"\nblocks.a = \"linear 4 4\"\n"
                                    "[[at]]\nfreeze = [\"a\"]\n")),
              ElementsAre(finding("4:8", {"did you mean 'graph'?"})));
}

TEST(ScenarioReaderTest, AsksForKeysThatHaveNoDefault) {
  EXPECT_THAT(findings_of(file_with("[[fault]]\nrank = 1\n")),
              ElementsAre(finding("3:1", {"fault.0 has no 'kind'", "expected kind = one of"})));
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"deadlock\"\nwaiting = [{ step = 1 }]\n"
                          "never_ready = { rank = 0 }\n"),
              ElementsAre(finding("4:12", {"expect.waiting.0 has no 'rank'"}),
                          finding("5:15", {"expect.never_ready has no 'parameters'"})));
}

TEST(ScenarioReaderTest, TakesOneOrManyRanksAndSteps) {
  const harness::Case value =
      only_case(file_with("[[at]]\nrank = 1\nsteps = [0, 2]\nsleep_ms = 1\n[[at]]\nlr = 0.5\n"));
  ASSERT_EQ(value.at.size(), 2U);
  EXPECT_THAT(value.at[0].ranks, ElementsAre(1));
  EXPECT_THAT(value.at[0].steps, ElementsAre(0, 2));
  EXPECT_THAT(value.at[1].ranks, IsEmpty());
  EXPECT_EQ(value.at[1].lr, 0.5);
  EXPECT_THAT(findings_of(file_with("[[at]]\nrank = 1\nranks = [0]\nsleep_ms = 1\n")),
              ElementsAre(finding("5:1", {"both 'rank' and 'ranks'", "expected one of them"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nranks = [0, 0]\nsleep_ms = 1\n")),
              ElementsAre(finding("4:13", {"has 0 twice"})));
}

TEST(ScenarioReaderTest, TakesTablesInlineAndAsSections) {
  const harness::Case one = only_case(
      "schema = 1\n[expect]\noutcome = \"deadlock\"\nnever_ready = { rank = 1, parameters = "
      "[\"layer0.bias\"] }\n");
  const harness::Case many = only_case(
      "schema = 1\n[expect]\noutcome = \"deadlock\"\n[[expect.never_ready]]\nrank = 1\nparameters "
      "= [\"layer0.bias\"]\n");
  ASSERT_EQ(one.expect.never_ready.size(), 1U);
  EXPECT_EQ(one.expect.never_ready[0].rank, 1);
  EXPECT_EQ(harness::print_case(one), harness::print_case(many));
}

TEST(ScenarioReaderTest, KeepsBlocksInFileOrderAndMixesStages) {
  const harness::Case value = only_case(
      file_with("[model]\nkind = \"graph\"\nforward = [\"z\", [\"b\", \"a\"]]\n"
                "[model.blocks]\nz = \"linear 4 4\"\nb = \"linear 4 2\"\na = \"linear 4 1\"\n"));
  using Block = std::pair<std::string, std::string>;
  EXPECT_THAT(value.model.blocks, ElementsAre(Block{"z", "linear 4 4"}, Block{"b", "linear 4 2"},
                                              Block{"a", "linear 4 1"}));
  EXPECT_THAT(value.model.forward, ElementsAre(ElementsAre("z"), ElementsAre("b", "a")));
}

TEST(ScenarioReaderTest, ReadsIntegersWhereNumbersAreMeant) {
  EXPECT_EQ(only_case(file_with("[train]\noptimizer.lr = 1\n")).train.optimizer.lr, 1.0);
}

TEST(ScenarioReaderTest, ABackendsExpectationStandsForTheWholeOfExpect) {
  const harness::Case value = only_case(
      "schema = 1\n[expect]\noutcome = \"diverged\"\nstep = 1\n"
      "[expect.gloo]\noutcome = \"error\"\nerror = \"script\"\n");
  EXPECT_EQ(harness::expectation(value, "sim").outcome, "diverged");
  EXPECT_EQ(harness::expectation(value, "gloo").outcome, "error");
  EXPECT_FALSE(harness::expectation(value, "gloo").step.has_value());
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"diverged\"\n[expect.sim]\nstep = 1\n"),
              ElementsAre(finding("4:9", {"[expect.sim] has no outcome", "outcome = \"...\""})));
}

}  // namespace
}  // namespace lockstep::test
