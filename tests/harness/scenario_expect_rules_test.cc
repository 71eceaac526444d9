// SPDX-License-Identifier: Apache-2.0
// Contradictions in [expect].
#include <gtest/gtest.h>

#include "tests/harness/scenario_findings.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ScenarioExpectRulesTest, DetailsBelongToTheirOutcome) {
  const std::string within = "schema = 1\n[expect]\noutcome = \"within_bound\"\n";
  EXPECT_THAT(findings_of(within + "cure = \"find_unused_parameters\"\n"),
              ElementsAre(finding("4:1", {"expect.cure says nothing about outcome "
                                          "\"within_bound\"",
                                          "belongs to diverged, deadlock and error"})));
  EXPECT_THAT(findings_of(within + "step = 1\nphase = \"gradient\"\nrank = 0\ntensor = \"x\"\n"
                                   "cause = \"scaled\"\noracle = \"ranks\"\n"),
              ElementsAre(finding("4:1", {"expect.step"}), finding("5:1", {"expect.phase"}),
                          finding("6:1", {"expect.rank"}), finding("7:1", {"expect.tensor"}),
                          finding("8:1", {"expect.cause"}), finding("9:1", {"expect.oracle"})));
  EXPECT_THAT(
      findings_of("schema = 1\n[expect]\noutcome = \"diverged\"\nwaiting = [{ rank = 0 }]\n"
                  "error = \"script\"\nmessage = \"x\"\n"),
      ElementsAre(finding("4:1", {"deadlock"}), finding("5:1", {"error, crash and deadlock"}),
                  finding("6:1", {"error, crash and deadlock"})));
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"crash\"\ncause = \"wrong_pairing\"\n"
                          "cure = \"join\"\n"
                          "never_ready = { rank = 0, parameters = [\"layer0.bias\"] }\n"),
              ElementsAre(finding("4:1", {"diverged, deadlock and error"}),
                          finding("5:1", {"diverged, deadlock and error"}),
                          finding("6:1", {"diverged, deadlock and error"})));
  // Wrong numbers may come of a reduction that was never finished, and others of ranks that met in
  // the wrong collective.
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"diverged\"\n"
                          "cause = \"unfinished_drift\"\ncure = \"find_unused_parameters\"\n"
                          "never_ready = { rank = 0, parameters = [\"layer0.bias\"] }\n"),
              IsEmpty());
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"deadlock\"\n"
                          "cause = \"wrong_pairing\"\n"),
              IsEmpty());
  EXPECT_THAT(
      findings_of("schema = 1\n[expect]\noutcome = \"error\"\nerror = \"script\"\nmessage = "
                  "\"x\"\nrank = 0\nstep = 0\nbucket_all_reduces = 3\nrebuilds = 1\n"),
      IsEmpty());
  // A rank may fail in a deadlock, and an unfinished reduction may end as an error.
  EXPECT_THAT(
      findings_of("schema = 1\n[expect]\noutcome = \"deadlock\"\nerror = \"script\"\nmessage "
                  "= \"x\"\n"),
      IsEmpty());
  EXPECT_THAT(
      findings_of("schema = 1\n[expect]\noutcome = \"error\"\ncure = \"all_ranks\"\nnever_ready "
                  "= { rank = 0, parameters = [\"layer0.bias\"] }\nwaiting = [{ rank = 1 }]\n"),
      ElementsAre(finding("6:1", {"expect.waiting", "belongs to deadlock"})));
}

TEST(ScenarioExpectRulesTest, WhatTorchDoesOtherwiseHasAReasonAndNothingElseHas) {
  const std::string both = "schema = 1\n[expect]\noutcome = \"deadlock\"\n[expect.torch]\n";
  EXPECT_THAT(findings_of(both + "outcome = \"error\"\nreason = \"known\"\n"), IsEmpty());
  EXPECT_THAT(findings_of(both + "outcome = \"error\"\n"),
              ElementsAre(finding("4:9", {"[expect.torch] has no reason"})));
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"deadlock\"\nreason = \"x\"\n"),
              ElementsAre(finding("4:1", {"it belongs to [expect.torch]"})));
}

TEST(ScenarioExpectRulesTest, VersionsAreBoundsOfWhatTorchDoesOtherwise) {
  const std::string both = "schema = 1\n[expect]\noutcome = \"deadlock\"\n[[expect.torch]]\n";
  const std::string torch = "outcome = \"error\"\nreason = \"known\"\n";
  EXPECT_THAT(findings_of(both + torch + "since = \"2.1\"\nbefore = \"2.4\"\n"), IsEmpty());
  EXPECT_THAT(findings_of(both + torch + "since = \"2.10\"\nbefore = \"2.4\"\n"),
              ElementsAre(finding("8:1", {"from 2.10 on and before 2.4"})));
  EXPECT_THAT(findings_of(both + torch + "since = \"2\"\n"),
              ElementsAre(finding("7:9", {"a version such as \"2.4\""})));
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"deadlock\"\nsince = \"2.1\"\n"),
              ElementsAre(finding("4:1", {"it belongs to [expect.torch]"})));
}

TEST(ScenarioExpectRulesTest, TheFirstThatIsAboutTheVersionHolds) {
  const harness::Case value = only_case(R"(schema = 1
[expect]
outcome = "deadlock"
[[expect.torch]]
outcome = "error"
reason = "old"
before = "2.1"
[[expect.torch]]
outcome = "error"
reason = "middle"
since = "2.1"
before = "2.14"
)");
  EXPECT_EQ(harness::known_difference(value, {1, 13})->reason, "old");
  EXPECT_EQ(harness::known_difference(value, {2, 1})->reason, "middle");
  EXPECT_EQ(harness::known_difference(value, {2, 13})->reason, "middle");
  EXPECT_EQ(harness::known_difference(value, {2, 14}), nullptr);
}

TEST(ScenarioExpectRulesTest, EqualityWithTheSerialOracleNeedsExactDataOrOneBatch) {
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"equal\"\n"),
              ElementsAre(finding(
                  "3:1", {"outcome = \"within_bound\"", "oracles = [\"ranks\", \"replay\"]"})));
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"equal\"\n"
                          "oracles = [\"ranks\", \"replay\"]\n"),
              IsEmpty());
  EXPECT_THAT(findings_of("schema = 1\nworld.ranks = 1\n"), IsEmpty());
  EXPECT_THAT(findings_of("schema = 1\nworld.ranks = 1\ntrain.micro_batches = 2\n"),
              ElementsAre(finding("2:7", {"2 micro-batches"})));
  EXPECT_THAT(findings_of("schema = 1\ndata.exact = true\ntrain.optimizer.lr = 0.5\n"), IsEmpty());
}

TEST(ScenarioExpectRulesTest, TheSerialOracleIsNotDefinedForBatchNormAndDropout) {
  for (const std::string block : {"batch_norm 4", "dropout 0.5"}) {
    const std::string model =
        "schema = 1\n[model]\nkind = \"graph\"\nblocks = { a = \"linear 4 4\", "
        "b = \"" +
        block + "\" }\n";
    EXPECT_THAT(findings_of(model + "[expect]\noutcome = \"within_bound\"\n"),
                ElementsAre(finding("6:1", {"not defined for a model with",
                                            "oracles = [\"ranks\", \"replay\"] in [expect]"})));
    EXPECT_THAT(findings_of(model + "[expect]\noracles = [\"ranks\", \"replay\"]\n"), IsEmpty());
    EXPECT_THAT(findings_of(model + "[expect]\noutcome = \"deadlock\"\n"), IsEmpty());
  }
}

TEST(ScenarioExpectRulesTest, TheSerialOracleOfSyncBatchNormNeedsTheBatchInOnePiece) {
  const std::string model =
      "schema = 1\nexpect.outcome = \"within_bound\"\n[model]\nkind = \"graph\"\nblocks = { a = "
      "\"linear 4 4\", b = \"sync_batch_norm 4\" }\n";
  EXPECT_THAT(findings_of(model), IsEmpty());
  EXPECT_THAT(
      findings_of(model + "[train]\nmicro_batches = 2\n"),
      ElementsAre(::testing::HasSubstr("sync_batch_norm with a batch in several forwards")));
}

TEST(ScenarioExpectRulesTest, TheSerialOracleOfSyncBatchNormNeedsOneRouteForAllRanks) {
  const std::string model =
      "schema = 1\nexpect.outcome = \"within_bound\"\n[model]\nkind = \"graph\"\nblocks = { a = "
      "\"linear 4 4\", b = \"sync_batch_norm 4\", c = \"linear 4 4\" }\n[[at]]\nskip = [\"c\"]\n";
  EXPECT_THAT(findings_of(model), IsEmpty());
  EXPECT_THAT(findings_of(model + "rank = 1\n"),
              ElementsAre(::testing::HasSubstr("ranks on different routes")));
  // One step in a million, in the last of 100 cases.
  const std::string steps = "steps = [999_999]\n[train]\nsteps = 1_000_000\n[vary]\n";
  EXPECT_THAT(findings_of(model + steps + "seed = { first = 1, count = 100 }\n"), IsEmpty());
  EXPECT_THAT(findings_of(model + "rank = 1\n" + steps + "seed = [1]\n"),
              ElementsAre(::testing::HasSubstr("ranks on different routes")));
  // Alike at every step but one: in two entries, of which one leaves a step out.
  EXPECT_THAT(
      findings_of(model + "ranks = [0]\n[[at]]\nskip = [\"c\"]\nrank = 1\nsteps = [0, 1]\n"),
      ElementsAre(::testing::HasSubstr("ranks on different routes")));
  EXPECT_THAT(
      findings_of(model + "ranks = [0]\n[[at]]\nskip = [\"c\"]\nrank = 1\nsteps = [0, 1, 2]\n"),
      IsEmpty());
}

TEST(ScenarioExpectRulesTest, AnEndSaysHow) {
  const std::string file = "schema = 1\n[expect]\noutcome = \"within_bound\"\nends = ";
  EXPECT_THAT(findings_of(file + "[{ ranks = [0] }, {}]\n"),
              ElementsAre(finding("4:9", {"says who and not how", "expected one of ending, error"}),
                          finding("4:26", {"says who and not how"})));
  EXPECT_THAT(findings_of(file + "[{ ranks = [0], ending = \"finished\" }, { step = -1 }]\n"),
              IsEmpty());
}

TEST(ScenarioExpectRulesTest, WhatIsIssuedIsByRanksAndInStepsThatExist) {
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"within_bound\"\n"
                          "issued = [{ rank = 2, step = 3, collectives = [] }]\n"),
              ElementsAre(::testing::HasSubstr("rank 2 does not exist"),
                          ::testing::HasSubstr("step 3 does not exist")));
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"within_bound\"\n"
                          "values = [{ rank = 2, step = 3, tensor = \"x\", numbers = [] }]\n"),
              ElementsAre(::testing::HasSubstr("rank 2 does not exist"),
                          ::testing::HasSubstr("step 3 does not exist")));
}

TEST(ScenarioExpectRulesTest, AHookPromisesTheOraclesThatCanFollowIt) {
  const auto file = [](const std::string& hook, const std::string& oracles) {
    return "schema = 1\n[ddp]\nhook = \"" + hook + "\"\n[expect]\noracles = " + oracles + "\n";
  };
  EXPECT_THAT(findings_of(file("fp16_compress", "[\"ranks\", \"replay\"]")), IsEmpty());
  EXPECT_THAT(findings_of(file("noop", "[\"ranks\"]")), IsEmpty());
  EXPECT_THAT(findings_of(file("power_sgd", "[\"ranks\", \"replay\"]")),
              ElementsAre(finding("5:1", {"hook \"power_sgd\"", "oracles = [\"ranks\"]"})));
  EXPECT_THAT(findings_of("schema = 1\n[ddp]\nhook = \"noop\"\nsync = \"flat\"\n[expect]\n"
                          "oracles = [\"ranks\"]\n"),
              ElementsAre(finding("3:1", {"\"flat\" has no hook \"noop\""})));
}

TEST(ScenarioExpectRulesTest, OnlyTheSerialOracleHasABound) {
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"within_bound\"\noracles = "
                          "[\"ranks\"]\n"),
              ElementsAre(finding("3:1", {"expect.oracles leaves it out", "outcome = \"equal\""})));
}

TEST(ScenarioExpectRulesTest, TheOracleThatBreaksIsOneThatIsAsked) {
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"diverged\"\noracles = [\"ranks\"]\n"
                          "oracle = \"replay\"\n"),
              ElementsAre(finding("5:1", {"not among those that are asked: ranks"})));
}

TEST(ScenarioExpectRulesTest, RanksStepsAndParametersExist) {
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"diverged\"\nrank = 2\nstep = 3\n"),
              ElementsAre(finding("4:1", {"rank 2 does not exist"}),
                          finding("5:1", {"step 3 does not exist"})));
  EXPECT_THAT(
      findings_of("schema = 1\n[expect]\noutcome = \"deadlock\"\n"
                  "waiting = [{ rank = 0, step = 5 }, { rank = 0 }, { rank = 7 }]\n"
                  "never_ready = { rank = 3, parameters = [\"layer0.bais\", \"layer0.bias\"] }\n"),
      ElementsAre(finding("4:24", {"step 5"}), finding("4:38", {"twice"}),
                  finding("4:52", {"rank 7"}), finding("5:17", {"rank 3"}),
                  finding("5:41", {"did you mean 'layer0.bias'?"})));
}

TEST(ScenarioExpectRulesTest, BackendsAreCheckedLikeExpect) {
  EXPECT_THAT(findings_of("schema = 1\n[expect]\noutcome = \"within_bound\"\n[expect.gloo]\n"
                          "outcome = \"equal\"\noracles = [\"ranks\"]\ncure = \"all_ranks\"\n"),
              ElementsAre(finding("7:1", {"expect.gloo.cure"})));
}

}  // namespace
}  // namespace lockstep::test
