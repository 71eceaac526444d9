// SPDX-License-Identifier: Apache-2.0
// Contradictions in [[at]] and [[fault]].
#include <gtest/gtest.h>

#include "tests/harness/scenario_findings.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two ranks, three steps and a model with two heads; `body` from line 7 on.
std::string file_with(const std::string& body) {
  return "schema = 1\nexpect.outcome = \"within_bound\"\n[model]\nkind = \"graph\"\n"
         "blocks = { trunk = \"linear 4 4\", act = \"relu\", left = \"linear 4 2\", right = "
         "\"linear 4 1\" }\n"
         "forward = [\"trunk\", \"act\", [\"left\", \"right\"]]\n" +
         body;
}

TEST(ScenarioEventRulesTest, AnEventDoesExactlyOneThing) {
  EXPECT_THAT(findings_of(file_with("[[at]]\nrank = 1\n")),
              ElementsAre(finding("7:1", {"does nothing", "expected one of skip, exit_after"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nlr = 0.5\n[[at]]\nlr = 0.5\nleave = true\n")),
              ElementsAre(finding("11:1", {"several things: lr, leave", "another [[at]]"})));
}

TEST(ScenarioEventRulesTest, RanksStepsAndMicroBatchesExist) {
  EXPECT_THAT(
      findings_of(file_with("[[at]]\nrank = 2\nlr = 0.5\n")),
      ElementsAre(finding("8:1", {"rank 2 does not exist", "world.ranks = 2", "expected 0 to 1"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nsteps = [1, 3]\nlr = 0.5\n")),
              ElementsAre(finding("8:1", {"step 3 does not exist", "train.steps = 3"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nmicro_batch = 1\nlr = 0.5\n")),
              ElementsAre(finding("8:1", {"micro_batch 1 does not exist"})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"sum_not_mean\"\nranks = [0, 5]\nstep = "
                                    "9\n")),
              ElementsAre(finding("9:1", {"rank 5"}), finding("10:1", {"step 9"})));
}

TEST(ScenarioEventRulesTest, BlocksAndParametersExist) {
  EXPECT_THAT(findings_of(file_with("[[at]]\nskip = [\"lefft\"]\n")),
              ElementsAre(finding(
                  "8:1", {"no block 'lefft'", "trunk, act, left, right", "did you mean 'left'?"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nexit_after = \"trunkk\"\n")),
              ElementsAre(finding("8:1", {"did you mean 'trunk'?"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nfreeze = [\"left.weigth\"]\n")),
              ElementsAre(finding("8:1", {"'left.weigth'", "did you mean 'left.weight'?"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nfreeze = [\"left\", \"trunk.bias\"]\n")), IsEmpty());
  // A block without parameters has nothing to freeze.
  EXPECT_THAT(findings_of(file_with("[[at]]\nfreeze = [\"act\"]\n")),
              ElementsAre(finding("8:1", {"block with parameters 'act'"})));
}

TEST(ScenarioEventRulesTest, WhatAStepIsMadeOfIsPartOfWhatTrainGivesIt) {
  EXPECT_THAT(findings_of(file_with("[[at]]\nsamples = 5\n")),
              ElementsAre(finding("8:1", {"samples = 5 of the 4", "at most 4"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nmicro_batches = 2\n")),
              ElementsAre(finding("8:1", {"micro_batches = 2, but a step has 1"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nwithout_loss = [\"trunk\"]\n")),
              ElementsAre(finding("8:1", {"no head 'trunk'", "left, right"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nwithout_loss = [\"left\", \"right\"]\n")),
              ElementsAre(finding("8:1", {"nothing is left of the loss"})));
  EXPECT_THAT(findings_of(file_with("[ddp]\nsync = \"flat\"\n[[at]]\nbypass = true\n")),
              ElementsAre(finding("10:1", {"no wrapper that could be bypassed"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nforward = 0\nscale_buffers = 2\n")), IsEmpty());
  EXPECT_THAT(findings_of(file_with("[[at]]\nforward = 0\nlr = 1\n")),
              ElementsAre(finding("8:1", {"lr is not about one forward"})));
}

TEST(ScenarioEventRulesTest, AFaultNeedsWhatItSpoils) {
  for (const char* kind : {"model_not_loaded", "optimizer_not_loaded", "window_scale",
                           "dropout_seed", "hook_raises", "hook_result"}) {
    SCOPED_TRACE(kind);
    EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"" + std::string(kind) + "\"\n")),
                ElementsAre(finding("8:1", {kind, "needs "})));
  }
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"replaced_parameter\"\nparameter = "
                                    "\"trunk.bias\"\nby = \"left.bais\"\n")),
              ElementsAre(finding("10:1", {"'left.bais'", "did you mean 'left.bias'?"})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"no_division\"\nby = \"round_trip\"\n")),
              ElementsAre(finding("9:1", {"not what no_division does"})));
}

TEST(ScenarioEventRulesTest, RoutesLeaveAModelThatRuns) {
  EXPECT_THAT(findings_of(file_with("[[at]]\nskip = [\"left\", \"right\"]\n")),
              ElementsAre(finding("8:1", {"leaves out every head"})));
  // Each alone is fine; at rank 1, step 2 both hold.
  EXPECT_THAT(findings_of(file_with("[[at]]\nrank = 1\nskip = [\"left\"]\n"
                                    "[[at]]\nstep = 2\nskip = [\"right\"]\n")),
              ElementsAre(finding("12:1", {"leaves out every head"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nrank = 1\nskip = [\"left\"]\n"
                                    "[[at]]\nrank = 0\nskip = [\"right\"]\n")),
              IsEmpty());
}

TEST(ScenarioEventRulesTest, DetailsBelongToTheirAction) {
  EXPECT_THAT(findings_of(file_with("[[at]]\nskip = [\"left\"]\nwhen = \"after_step\"\n")),
              ElementsAre(finding("9:1", {"skip holds for a whole forward"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nskip_step = true\nmicro_batch = 0\n")),
              ElementsAre(finding("9:1", {"skip_step is about a whole step"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nskip_step = true\nwhen = \"after_step\"\n")),
              ElementsAre(finding("9:1", {"nothing of it is left to skip"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nlr = 0.5\ncollective_numel = 7\n")),
              ElementsAre(finding("9:1", {"there is none"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nlr = 0.5\nevaluate_through = \"module\"\n")),
              ElementsAre(finding("9:1", {"nothing is evaluated"})));
}

TEST(ScenarioEventRulesTest, AReloadIsAboutAWholeStepAndAForwardAboutRoutes) {
  EXPECT_THAT(findings_of(file_with("[[at]]\nreload = true\nwhen = \"after_step\"\n")),
              ElementsAre(finding("9:1", {"reload holds for a whole forward or step"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nreload = true\nmicro_batch = 0\n")),
              ElementsAre(finding("9:1", {"reload is about a whole step"})));
  EXPECT_THAT(
      findings_of(file_with("[[at]]\nlr = 0.5\nforward = 0\n")),
      ElementsAre(finding("9:1", {"'forward' belongs to skip, exit_after, mute, without_loss"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nskip = [\"left\"]\nforward = 1\n")),
              ElementsAre(finding("9:1", {"forward 1 does not exist"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nlr = 0.5\nevaluate_with_gradients = true\n")),
              ElementsAre(finding("9:1", {"nothing is evaluated"})));
}

TEST(ScenarioEventRulesTest, FaultsOfReloadsAndBlocksNeedThem) {
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"optimizer_not_loaded\"\n")),
              ElementsAre(finding("8:1", {"expected an [[at]] with reload = true"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nstep = 1\nreload = true\n"
                                    "[[fault]]\nkind = \"optimizer_not_loaded\"\n")),
              IsEmpty());
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"local_batch_norm\"\n")),
              ElementsAre(finding("8:1", {"the model has none"})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"other_dtype\"\n")),
              ElementsAre(finding("8:1", {"happens to one parameter"})));
}

TEST(ScenarioEventRulesTest, FaultsHaveAParameterWhereTheyNeedOne) {
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"forgotten_parameter\"\n")),
              ElementsAre(finding("8:1", {"happens to one parameter", "parameter = \"...\""})));
  EXPECT_THAT(
      findings_of(file_with("[[fault]]\nkind = \"sum_not_mean\"\nparameter = \"left.bias\"\n")),
      ElementsAre(finding("9:1", {"not about one parameter"})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"replaced_parameter\"\nparameter = "
                                    "\"left.bais\"\n")),
              ElementsAre(finding("9:1", {"did you mean 'left.bias'?"})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"corrupt_gradient\"\n")), IsEmpty());
}

TEST(ScenarioEventRulesTest, InsideJoinARankLeavesBetweenSteps) {
  const std::string leave = "[ddp]\njoin = \"divide_by_active\"\n[[at]]\nrank = 1\nleave = true\n";
  EXPECT_THAT(findings_of(file_with(leave)), IsEmpty());
  EXPECT_THAT(findings_of(file_with(leave + "when = \"after_step\"\n")), IsEmpty());
  EXPECT_THAT(findings_of(file_with(leave + "when = \"after_backward\"\n")),
              ElementsAre(finding("12:1", {"between two steps"})));
  EXPECT_THAT(findings_of(file_with(leave + "micro_batch = 0\n")),
              ElementsAre(finding("12:1", {"no micro_batch"})));
  const std::string evaluation = "[[at]]\nevaluate = 1\nstep = 0\n";
  EXPECT_THAT(findings_of(file_with(evaluation + leave)),
              ElementsAre(finding("14:1", {"evaluates first", "put this entry before"})));
  EXPECT_THAT(findings_of(file_with(leave + evaluation)), IsEmpty());
  EXPECT_THAT(findings_of(file_with(evaluation + "when = \"after_step\"\n" + leave + "step = 1\n")),
              IsEmpty());
  EXPECT_THAT(findings_of(file_with(evaluation + "evaluate_through = \"module\"\n" + leave)),
              IsEmpty());
}

TEST(ScenarioEventRulesTest, FaultsAreOnesThatCanHappen) {
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"per_rank_init\"\nstep = 1\n")),
              ElementsAre(finding("9:1", {"before the first step"})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"forgotten_parameter\"\nparameter = "
                                    "\"left.bias\"\nstep = 1\n")),
              ElementsAre(::testing::HasSubstr("happens before the first step")));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"no_initial_broadcast\"\nrank = 1\n")),
              ElementsAre(::testing::HasSubstr("is an option that all ranks share")));
  EXPECT_THAT(
      findings_of(file_with("[[fault]]\nkind = \"clip_before_sync\"\n[train]\nclip_norm = 1.0\n")),
      ElementsAre(finding("8:1", {"ddp.sync = \"per_parameter\" or \"flat\""})));
  EXPECT_THAT(
      findings_of(file_with("[[fault]]\nkind = \"clip_before_sync\"\n[ddp]\nsync = \"flat\"\n")),
      ElementsAre(finding("8:1", {"train.clip_norm above 0"})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"sync_before_last_micro_batch\"\n")),
              ElementsAre(finding("8:1", {"train.micro_batches above 1"})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"join_divisor\"\n")),
              ElementsAre(finding("8:1", {"\"divide_by_initial\" or \"divide_by_active\""})));
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"stop\"\nrank = 1\n")),
              ElementsAre(finding("8:1", {"expected world.timeout_ms above 0"})));
}

TEST(ScenarioEventRulesTest, WhatIsSetAlreadyProvesNothing) {
  EXPECT_THAT(findings_of(file_with("[[at]]\nlr = 0.1\n")),
              ElementsAre(finding("8:1", {"changes nothing", "the learning rate is that"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nstep = 1\nlr = 0.5\n[[at]]\nstep = 2\nlr = 0.5\n")),
              ElementsAre(finding("12:1", {"changes nothing"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nstep = 1\nlr = 0.5\n[[at]]\nstep = 2\nlr = 0.1\n")),
              IsEmpty());
  EXPECT_THAT(findings_of(file_with("[[at]]\nunfreeze = [\"left\"]\n")),
              ElementsAre(finding("8:1", {"nothing of this is frozen"})));
  EXPECT_THAT(findings_of(file_with("[[at]]\nstep = 1\nfreeze = [\"left\"]\n"
                                    "[[at]]\nrank = 1\nstep = 2\nunfreeze = [\"left\"]\n")),
              IsEmpty());
  EXPECT_THAT(findings_of(file_with("[[at]]\nrank = 0\nfreeze = [\"left\"]\n"
                                    "[[at]]\nrank = 1\nstep = 2\nunfreeze = [\"left\"]\n")),
              ElementsAre(finding("13:1", {"nothing of this is frozen"})));
}

TEST(ScenarioEventRulesTest, FaultsHaveSomethingToSpoil) {
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"buffers_not_synced\"\n")),
              ElementsAre(finding("8:1", {"needs buffers", "batch_norm"})));
  // 64 samples are 8 steps of 2 ranks with 4 samples each.
  EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"epoch_not_set\"\n")),
              ElementsAre(finding("8:1", {"needs a second epoch", "fewer data.samples"})));
  EXPECT_THAT(findings_of(file_with("[data]\nsamples = 16\n[[fault]]\nkind = "
                                    "\"epoch_not_set\"\n")),
              IsEmpty());
}

/// Entries at places of their own, each of which leaves out a block of the middle.
std::string routes(const std::string& key, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += "[[at]]\nskip = [\"act\"]\n" + key + " = " + std::to_string(i) + "\n";
  }
  return text;
}

TEST(ScenarioEventRulesTest, RoutesAddUpWhereEntriesMeet) {
  const std::string train =
      "train = { batch_per_rank = 64, micro_batches = 8, "
      "forwards_per_backward = 8, steps = 100 }\ndata.samples = 10_000\n";
  const std::string base = train + "world.ranks = 60\n";
  const std::string left = "[[at]]\nskip = [\"left\"]\nrank = 3\nstep = 40\n";
  const std::string right = "[[at]]\nskip = [\"right\"]\nmicro_batch = 5\nforward = 2\n";
  // Each alone leaves a head; where they meet there is none.
  EXPECT_THAT(findings_of("schema = 1\nexpect.outcome = \"within_bound\"\n" + base +
                          file_with("").substr(file_with("").find("[model]")) + left),
              IsEmpty());
  EXPECT_THAT(findings_of("schema = 1\nexpect.outcome = \"within_bound\"\n" + base +
                          file_with("").substr(file_with("").find("[model]")) + left + right),
              ElementsAre(finding("15:1", {"leaves out every head"})));
}

TEST(ScenarioEventRulesTest, RoutesThatMeetInTooManyWaysAreRefused) {
  const std::string head =
      "schema = 1\nexpect.outcome = \"within_bound\"\ntrain = { "
      "batch_per_rank = 64, micro_batches = 8, forwards_per_backward = 8, "
      "steps = 100 }\ndata.samples = 10_000\nworld.ranks = 60\n" +
      file_with("").substr(file_with("").find("[model]"));
  EXPECT_THAT(findings_of(head + routes("rank", 15) + routes("step", 15)), IsEmpty());
  EXPECT_THAT(findings_of(head + routes("rank", 40) + routes("step", 40) +
                          routes("micro_batch", 7) + routes("forward", 7)),
              ElementsAre(finding("10:3", {"add up in more than 2000 ways"})));
}

}  // namespace
}  // namespace lockstep::test
