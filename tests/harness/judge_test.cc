// SPDX-License-Identifier: Apache-2.0
// Every oracle and every outcome, shown on runs that were spoilt on purpose.
#include "harness/judge/judge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "harness/judge/wait_for.h"
#include "harness/program.h"
#include "harness/scenario.h"

namespace lockstep::harness {
namespace {

// Inside a test, `Run` is GoogleTest's.
using TrainingRun = Run;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Case case_of(const std::string& text) {
  return parse_scenario_text("schema = 1\ntitle = \"t\"\n" + text, "test.toml").front().value;
}

const char* const kPlain = R"(
[world]
ranks = 3
[expect]
outcome = "within_bound"
)";

const char* const kExact = R"(
[data]
exact = true
[train]
loss = "dot"
optimizer = { kind = "sgd", lr = 0.125 }
)";

class JudgeTest : public ::testing::Test {
 protected:
  TrainingRun run(const Case& value) { return simulator_->execute(compile_subject(value)); }

  Outcome judge(const Case& value, const TrainingRun& run) {
    return judge_run(value, value.expect, run, nullptr, nullptr);
  }

  std::unique_ptr<Executor> simulator_ = make_sim_executor();
};

// Moves the first float of a snapshot to its upper neighbour.
void nudge(Snapshot& snapshot) {
  float value;
  std::memcpy(&value, snapshot.bytes.data(), sizeof value);
  value = std::nextafter(value, INFINITY);
  std::memcpy(snapshot.bytes.data(), &value, sizeof value);
}

void set_first(Snapshot& snapshot, float value) {
  std::memcpy(snapshot.bytes.data(), &value, sizeof value);
}

TEST_F(JudgeTest, AcceptsAnUntouchedRun) {
  const Case value = case_of(kPlain);
  EXPECT_EQ(judge(value, run(value)).kind, OutcomeKind::kWithinBound);
}

TEST_F(JudgeTest, RanksOracleSeesOneUlpOnOneRank) {
  const Case value = case_of(kPlain);
  TrainingRun spoilt = run(value);
  nudge(spoilt.ranks[2].steps[1].gradients);
  const Outcome outcome = judge(value, spoilt);
  ASSERT_EQ(outcome.kind, OutcomeKind::kDiverged);
  EXPECT_EQ(outcome.divergence->oracle, "ranks");
  EXPECT_EQ(outcome.divergence->phase, "gradient");
  EXPECT_EQ(outcome.divergence->step, 1);
  EXPECT_THAT(outcome.divergence->ranks, ElementsAre(2));
  EXPECT_EQ(outcome.divergence->tensor, "layer0.weight");
  EXPECT_EQ(outcome.divergence->ulp, 1);
}

TEST_F(JudgeTest, RanksOracleAloneNeedsNoReference) {
  Case value = case_of(kPlain);
  value.expect.outcome = "equal";
  value.expect.oracles = {"ranks"};
  TrainingRun spoilt = run(value);
  EXPECT_EQ(judge(value, spoilt).kind, OutcomeKind::kEqual);
  nudge(spoilt.ranks[1].steps[0].parameters);
  EXPECT_EQ(judge(value, spoilt).divergence->phase, "parameter");
}

TEST_F(JudgeTest, ReplayOracleSeesOneUlpOnAllRanksAlike) {
  const Case value = case_of(kPlain);
  for (const bool in_parameters : {false, true}) {
    TrainingRun spoilt = run(value);
    for (RankRun& rank : spoilt.ranks) {
      nudge(in_parameters ? rank.steps[2].parameters : rank.steps[2].gradients);
    }
    const Outcome outcome = judge(value, spoilt);
    ASSERT_EQ(outcome.kind, OutcomeKind::kDiverged);
    EXPECT_EQ(outcome.divergence->oracle, "replay");
    EXPECT_EQ(outcome.divergence->phase, in_parameters ? "parameter" : "gradient");
    EXPECT_EQ(outcome.divergence->step, 2);
  }
}

TEST_F(JudgeTest, WhatWasIssuedIsHeldAgainstTheExpectation) {
  Case value = case_of(kPlain);
  const TrainingRun run = this->run(value);
  value.expect.issued = {{1, 2, {"bucket 212"}}};
  EXPECT_THAT(complaints_about_issued(value.expect, run), IsEmpty());
  value.expect.issued = {{1, 2, {"bucket 212", "used_map 4"}}, {0, 0, {}}};
  EXPECT_THAT(
      complaints_about_issued(value.expect, run),
      ElementsAre(HasSubstr("rank 1 to issue [bucket 212, used_map 4] in step 2, got [bucket "
                            "212]"),
                  HasSubstr("rank 0 to issue [] in step 0, got [bucket 212]")));
}

TEST_F(JudgeTest, TheDtypeOfWhatWasIssuedIsLookedAtWhereItIsAskedFor) {
  Case value = case_of(kPlain);
  const TrainingRun run = this->run(value);
  value.expect.issued = {{1, 2, {"bucket 212 Float"}}};
  EXPECT_THAT(complaints_about_issued(value.expect, run), IsEmpty());
  value.expect.issued = {{1, 2, {"bucket 212 Half"}}};
  EXPECT_THAT(complaints_about_issued(value.expect, run),
              ElementsAre(HasSubstr("[bucket 212 Half] in step 2, got [bucket 212 Float]")));
}

TEST_F(JudgeTest, NumbersAreHeldAgainstTheExpectationBitForBit) {
  Case value = case_of(
      "[model]\nkind = \"graph\"\nblocks = { w = \"scale 1\", b = \"scale 1\" }\n"
      "forward = [\"w\"]\n[data]\ninputs = [1]\ntargets = [1, 3]\nshuffle = false\n"
      "[train]\nloss = \"dot\"\nbatch_per_rank = 1\n[ddp]\nfind_unused_parameters = true\n"
      "[expect]\noutcome = \"within_bound\"\n");
  const TrainingRun run = this->run(value);
  // 1 - 0.1 * (1 + 3) / 2 in single precision.
  value.expect.values = {{0, 0, "gradient", "w.weight", {2.0}},
                         {1, 0, "parameter", "w.weight", {0.8}},
                         {1, 2, "gradient", "b.weight", {}}};
  EXPECT_THAT(complaints_about_values(value.expect, run), IsEmpty());
  value.expect.values = {{0, 0, "gradient", "w.weight", {2.0000002}},
                         {1, 2, "gradient", "b.weight", {0.0}},
                         {0, 0, "gradient", "w.weight", {}},
                         {0, 0, "buffer", "none", {1.0}}};
  EXPECT_THAT(
      complaints_about_values(value.expect, run),
      ElementsAre(HasSubstr("of rank 0 after step 0 to be [2.0000002], got [2]"),
                  HasSubstr("b.weight of rank 1 after step 2 to be [0], got it is undefined"),
                  HasSubstr("to be undefined, got [2]"), HasSubstr("got there is no such tensor")));
}

TEST_F(JudgeTest, HowRanksEndIsHeldAgainstTheExpectation) {
  Case value = case_of(kPlain);
  TrainingRun run = this->run(value);
  run.ranks[1].error_kind = "peer_lost";
  run.ranks[1].error_message = "lost rank 0";
  run.ranks[1].ending = Ending::kFailed;
  run.ranks[1].ended_at_ns = 5'000'000;
  ExpectEnd good;
  good.ranks = {1};
  good.ending = "failed";
  good.error = "peer_lost";
  good.message = "rank 0";
  good.step = run.ranks[1].at_step;
  good.within_ms = 5;
  good.parameters_of_step = run.ranks[1].steps.back().step;
  value.expect.ends = {good};
  EXPECT_THAT(complaints_about_ends(value.expect, run), IsEmpty());
  const std::vector<std::pair<void (*)(ExpectEnd&), const char*>> spoilers = {
      {[](ExpectEnd& e) { e.ending = "finished"; }, "its ending is failed, expected finished"},
      {[](ExpectEnd& e) { e.error = "timed_out"; }, "its error is peer_lost, expected timed_out"},
      {[](ExpectEnd& e) { e.message = "rank 2"; }, "does not say \"rank 2\""},
      {[](ExpectEnd& e) { e.step = 77; }, "expected 77"},
      {[](ExpectEnd& e) { e.within_ms = 4; }, "in ms is 5, expected 4"},
      {[](ExpectEnd& e) { e.parameters_of_step = 0; }, "are not those after step 0"},
      {[](ExpectEnd& e) { e.parameters_of_step = -1; }, "are not those after construction"},
      {[](ExpectEnd& e) { e.ranks = {0}; }, "rank 0 finished"},
      {[](ExpectEnd& e) { e.ranks = {63}; }, "rank 63 was expected to end"},
  };
  for (const auto& [spoil, complaint] : spoilers) {
    value.expect.ends = {good};
    spoil(value.expect.ends.front());
    EXPECT_THAT(complaints_about_ends(value.expect, run), ElementsAre(HasSubstr(complaint)));
  }
  // Such a rank has no time at which it ended.
  run.ranks[1].ending = Ending::kWaiting;
  run.ranks[1].ended_at_ns = -1;
  good.ending.clear();
  value.expect.ends = {good};
  EXPECT_THAT(complaints_about_ends(value.expect, run), ElementsAre(HasSubstr("it never ended")));
}

TEST_F(JudgeTest, AFailedLaunchIsAnErrorOfItsProcessesWithoutNumbers) {
  TrainingRun run;
  run.ranks.resize(3);
  for (RankRun& process : run.ranks) {
    process.at_phase = "rendezvous";
  }
  run.ranks[2].ending = Ending::kFailed;
  run.ranks[2].error_kind = "rank_taken";
  const Outcome outcome = judge(case_of(kPlain), run);
  EXPECT_EQ(outcome.kind, OutcomeKind::kError);
  EXPECT_EQ(outcome.ranks.size(), 3U);
  EXPECT_THAT(outcome.oracles, IsEmpty());
}

TEST_F(JudgeTest, ReplayOracleSeesOptimizerStateInitialStateAndLosses) {
  Case value = case_of(std::string(kPlain) + "[train]\noptimizer = { kind = \"adam\" }\n");
  TrainingRun spoilt = run(value);
  for (RankRun& rank : spoilt.ranks) {
    rank.steps[1].optimizer.bytes.back() ^= 1;
  }
  EXPECT_EQ(judge(value, spoilt).divergence->phase, "optimizer");

  spoilt = run(value);
  for (RankRun& rank : spoilt.ranks) {
    nudge(rank.initial_parameters);
  }
  EXPECT_EQ(judge(value, spoilt).divergence->phase, "init");

  spoilt = run(value);
  spoilt.ranks[1].steps[0].losses[0] += 1e-3;
  const Outcome outcome = judge(value, spoilt);
  EXPECT_EQ(outcome.divergence->phase, "forward");
  EXPECT_THAT(outcome.divergence->ranks, ElementsAre(1));
}

TEST_F(JudgeTest, ReplayOracleSeesAnInitialBufferOfOneRank) {
  const Case value = case_of(R"(
[model]
kind = "graph"
blocks = { a = "linear 8 4", norm = "batch_norm 4" }
[expect]
oracles = ["ranks", "replay"]
)");
  TrainingRun spoilt = run(value);
  EXPECT_EQ(judge(value, spoilt).kind, OutcomeKind::kEqual);
  nudge(spoilt.ranks[1].initial_buffers);
  const Outcome outcome = judge(value, spoilt);
  ASSERT_EQ(outcome.kind, OutcomeKind::kDiverged);
  EXPECT_EQ(outcome.divergence->phase, "init");
  EXPECT_THAT(outcome.divergence->ranks, ElementsAre(1));
}

TEST_F(JudgeTest, ReplayOracleSeesABufferOfOneRank) {
  const Case value = case_of(R"(
[model]
kind = "graph"
blocks = { a = "linear 4 4", norm = "batch_norm 4", b = "linear 4 2" }
[expect]
oracles = ["ranks", "replay"]
)");
  TrainingRun spoilt = run(value);
  EXPECT_EQ(judge(value, spoilt).kind, OutcomeKind::kEqual);
  nudge(spoilt.ranks[1].steps[1].buffers);
  const Outcome outcome = judge(value, spoilt);
  EXPECT_EQ(outcome.divergence->phase, "buffer");
  EXPECT_THAT(outcome.divergence->ranks, ElementsAre(1));
}

TEST_F(JudgeTest, SerialOracleSeesOneUlpInAnExactCase) {
  Case value = case_of(kExact);
  value.expect.oracles = {"serial"};
  TrainingRun spoilt = run(value);
  EXPECT_EQ(judge(value, spoilt).kind, OutcomeKind::kEqual);
  for (RankRun& rank : spoilt.ranks) {
    nudge(rank.steps[0].parameters);
  }
  const Outcome outcome = judge(value, spoilt);
  ASSERT_EQ(outcome.kind, OutcomeKind::kDiverged);
  EXPECT_EQ(outcome.divergence->oracle, "serial");
  EXPECT_EQ(outcome.divergence->phase, "parameter");
}

TEST_F(JudgeTest, DerivedBoundAllowsRoundingAndNothingMore) {
  Case value = case_of(kPlain);
  value.expect.oracles = {"serial"};
  TrainingRun spoilt = run(value);
  const Outcome sound = judge(value, spoilt);
  ASSERT_EQ(sound.kind, OutcomeKind::kWithinBound);
  ASSERT_TRUE(sound.worst.has_value());
  EXPECT_GT(sound.worst->bound, 0.0);
  EXPECT_LE(sound.worst->observed, sound.worst->bound);
  // A thousand times float32's resolution is far from rounding, and far from visible in a loss.
  float first;
  std::memcpy(&first, spoilt.ranks[0].steps[0].gradients.bytes.data(), sizeof first);
  set_first(spoilt.ranks[0].steps[0].gradients, first + 1e-4F);
  const Outcome outcome = judge(value, spoilt);
  ASSERT_EQ(outcome.kind, OutcomeKind::kDiverged);
  EXPECT_EQ(outcome.divergence->oracle, "serial");
  EXPECT_GT(outcome.worst->observed, outcome.worst->bound);
}

TEST_F(JudgeTest, DerivedBoundSeesNan) {
  Case value = case_of(kPlain);
  value.expect.oracles = {"serial"};
  TrainingRun spoilt = run(value);
  set_first(spoilt.ranks[0].steps[1].parameters, NAN);
  EXPECT_EQ(judge(value, spoilt).kind, OutcomeKind::kDiverged);
}

TEST_F(JudgeTest, RefusesARunThatRounded) {
  const Case value = case_of(kExact);
  TrainingRun spoilt = run(value);
  EXPECT_EQ(judge(value, spoilt).kind, OutcomeKind::kEqual);
  spoilt.ranks[1].steps[2].inexact_in = "backward";
  const Outcome outcome = judge(value, spoilt);
  ASSERT_EQ(outcome.kind, OutcomeKind::kError);
  EXPECT_EQ(outcome.ranks.front().error_kind, "not_exact");
  EXPECT_THAT(outcome.reason, HasSubstr("backward of step 2 (rank 1)"));
}

TEST_F(JudgeTest, OneRankThatWaitsMakesADeadlockWhateverElseHappened) {
  const Case value = case_of(kPlain);
  TrainingRun spoilt = run(value);
  spoilt.ranks[0].ending = Ending::kWaiting;
  spoilt.ranks[0].waiting = WaitingIn{"all_reduce", "bucket", 7, 2, 0, 10, "Float", {1}};
  spoilt.ranks[1].ending = Ending::kFailed;
  spoilt.ranks[1].error_kind = "script";
  const Outcome outcome = judge(value, spoilt);
  EXPECT_EQ(outcome.kind, OutcomeKind::kDeadlock);
  EXPECT_THAT(outcome.wait_for_text, HasSubstr("all_reduce (seq 7; bucket 0, step 2)"));
  EXPECT_THAT(outcome.wait_for_dot, HasSubstr("r0 -> r1"));
}

TEST_F(JudgeTest, AFailedRankAloneMakesAnError) {
  const Case value = case_of(kPlain);
  TrainingRun spoilt = run(value);
  spoilt.ranks[1].ending = Ending::kFailed;
  EXPECT_EQ(judge(value, spoilt).kind, OutcomeKind::kError);
}

TEST_F(JudgeTest, ADeadProcessMakesACrashEvenIfOthersWait) {
  const Case value = case_of(kPlain);
  TrainingRun spoilt = run(value);
  spoilt.ranks[0].ending = Ending::kWaiting;
  spoilt.ranks[2].ending = Ending::kCrashed;
  spoilt.ranks[2].signal = 9;
  EXPECT_EQ(judge(value, spoilt).kind, OutcomeKind::kCrash);
}

TEST(JudgeCaseTest, CasesWithMoreRanksThanThereIsRoomForAreSkipped) {
  NamedCase named;
  named.value.world.ranks = 3;
  JudgeOptions options;
  const auto simulator = make_sim_executor();
  options.executor = options.simulator = simulator.get();
  options.ranks_max = 2;
  EXPECT_TRUE(judge_case(named, options).skipped);
  options.ranks_max = 3;
  EXPECT_FALSE(judge_case(named, options).skipped);
}

}  // namespace
}  // namespace lockstep::harness
