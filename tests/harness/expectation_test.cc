// SPDX-License-Identifier: Apache-2.0
// What came out of a case against its [expect], detail by detail; and where a case can be judged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "harness/case_facts.h"
#include "harness/judge/judge.h"

namespace lockstep::harness {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What came out against what was expected.
CaseResult result_of(Outcome outcome) {
  CaseResult result;
  result.outcome = std::move(outcome);
  return result;
}

TEST(ExpectationTest, ComplainsAboutAnotherOutcome) {
  ExpectSpec expect;
  Outcome outcome;
  outcome.kind = OutcomeKind::kDiverged;
  EXPECT_THAT(complaints_about(expect, result_of(outcome)),
              ElementsAre("expected outcome \"equal\", got \"diverged\""));
}

TEST(ExpectationTest, EqualBitsAreWithinAnyBoundButNotTheOtherWayRound) {
  ExpectSpec expect;
  Outcome outcome;
  expect.outcome = "within_bound";
  EXPECT_THAT(complaints_about(expect, result_of(outcome)), IsEmpty());
  expect.outcome = "equal";
  outcome.kind = OutcomeKind::kWithinBound;
  EXPECT_EQ(complaints_about(expect, result_of(outcome)).size(), 1U);
}

TEST(ExpectationTest, HoldsEveryDetailOfADivergence) {
  Outcome outcome;
  outcome.kind = OutcomeKind::kDiverged;
  outcome.divergence.emplace();
  outcome.divergence->oracle = "ranks";
  outcome.divergence->step = 1;
  outcome.divergence->phase = "gradient";
  outcome.divergence->ranks = {1};
  outcome.divergence->tensor = "a.weight";
  outcome.divergence->causes = {{"local_only", "", true}};
  ExpectSpec good;
  good.outcome = "diverged";
  good.oracle = "ranks";
  good.step = 1;
  good.phase = "gradient";
  good.rank = 1;
  good.tensor = "a.weight";
  good.cause = "local_only";
  EXPECT_THAT(complaints_about(good, result_of(outcome)), IsEmpty());
  const std::vector<void (*)(ExpectSpec&)> spoilers = {
      [](ExpectSpec& e) { e.oracle = "replay"; },      [](ExpectSpec& e) { e.step = 2; },
      [](ExpectSpec& e) { e.phase = "parameter"; },    [](ExpectSpec& e) { e.rank = 0; },
      [](ExpectSpec& e) { e.tensor = "b.weight"; },    [](ExpectSpec& e) { e.cause = "scaled"; },
      [](ExpectSpec& e) { e.bucket_all_reduces = 5; }, [](ExpectSpec& e) { e.rebuilds = 1; },
  };
  for (const auto& spoil : spoilers) {
    ExpectSpec bad = good;
    spoil(bad);
    EXPECT_EQ(complaints_about(bad, result_of(outcome)).size(), 1U);
  }
}

TEST(ExpectationTest, HoldsEveryDetailOfADeadlock) {
  Outcome outcome;
  outcome.kind = OutcomeKind::kDeadlock;
  RankState waits;
  waits.rank = 0;
  waits.ending = Ending::kWaiting;
  waits.waiting = WaitingIn{"all_reduce", "bucket", 7, 2, 0, 10, "Float", {1}};
  RankState ended;
  ended.rank = 1;
  ended.never_ready = {{"a.weight", 0, 2, 0, ""}};
  outcome.ranks = {waits, ended};
  outcome.cure = Cure{"find_unused_parameters", ""};
  outcome.diagnoses = {{"unfinished_hang", "", true}};
  ExpectSpec good;
  good.outcome = "deadlock";
  good.waiting = {{0, "all_reduce", "bucket", 2, 0}};
  good.never_ready = {{1, {"a.weight"}}};
  good.cure = "find_unused_parameters";
  good.cause = "unfinished_hang";
  EXPECT_THAT(complaints_about(good, result_of(outcome)), IsEmpty());
  const std::vector<void (*)(ExpectSpec&)> spoilers = {
      [](ExpectSpec& e) { e.waiting[0].collective = "broadcast"; },
      [](ExpectSpec& e) { e.waiting[0].site = "buffers"; },
      [](ExpectSpec& e) { e.waiting[0].step = 1; },
      [](ExpectSpec& e) { e.waiting[0].bucket = 1; },
      [](ExpectSpec& e) { e.never_ready[0].parameters = {}; },
      [](ExpectSpec& e) { e.cure = "all_ranks"; },
      [](ExpectSpec& e) { e.error = "script"; },
      [](ExpectSpec& e) { e.cause = "wrong_pairing"; },
  };
  for (const auto& spoil : spoilers) {
    ExpectSpec bad = good;
    spoil(bad);
    EXPECT_EQ(complaints_about(bad, result_of(outcome)).size(), 1U);
  }
  // A rank that waits though nobody expected it to.
  ExpectSpec other = good;
  other.waiting = {{1, "", "", std::nullopt, std::nullopt}};
  EXPECT_EQ(complaints_about(other, result_of(outcome)).size(), 2U);
}

TEST(ExpectationTest, AnyProvenCureIsAsExpected) {
  Outcome outcome;
  outcome.kind = OutcomeKind::kDeadlock;
  outcome.cure = Cure{"agreed_skip", ""};
  outcome.cures_tried = {
      {"join", false, "deadlock"}, {"agreed_skip", true, ""}, {"all_ranks", true, ""}};
  ExpectSpec expect;
  expect.outcome = "deadlock";
  for (const char* proven : {"agreed_skip", "all_ranks"}) {
    expect.cure = proven;
    EXPECT_THAT(complaints_about(expect, result_of(outcome)), IsEmpty());
  }
  expect.cure = "join";
  EXPECT_THAT(complaints_about(expect, result_of(outcome)),
              ElementsAre("expected the cure \"join\", got \"agreed_skip\""));
}

TEST(ExpectationTest, HoldsKindMessageRankAndStepOfAnError) {
  Outcome outcome;
  outcome.kind = OutcomeKind::kError;
  RankState failed;
  failed.rank = 1;
  failed.ending = Ending::kFailed;
  failed.at_step = 2;
  failed.error_kind = "script";
  failed.error_message = "out of memory";
  outcome.ranks = {failed};
  ExpectSpec good;
  good.outcome = "error";
  good.error = "script";
  good.message = "memory";
  good.rank = 1;
  good.step = 2;
  EXPECT_THAT(complaints_about(good, result_of(outcome)), IsEmpty());
  const std::vector<void (*)(ExpectSpec&)> spoilers = {
      [](ExpectSpec& e) { e.error = "desync"; },
      [](ExpectSpec& e) { e.message = "disk"; },
      [](ExpectSpec& e) { e.rank = 0; },
      [](ExpectSpec& e) { e.step = 1; },
  };
  for (const auto& spoil : spoilers) {
    ExpectSpec bad = good;
    spoil(bad);
    EXPECT_THAT(complaints_about(bad, result_of(outcome)),
                ElementsAre(HasSubstr("expected an error")));
  }
}

TEST(RunsOnTest, KeepsCasesFromBackendsTheyCannotRunOn) {
  Case value;
  EXPECT_TRUE(runs_on(value, "sim"));
  EXPECT_TRUE(runs_on(value, "gloo"));
  value.world.simulator_only = true;
  EXPECT_FALSE(runs_on(value, "gloo"));
  value.world.simulator_only = false;
  value.faults.emplace_back().kind = "crash";
  EXPECT_TRUE(runs_on(value, "sim"));
  EXPECT_TRUE(runs_on(value, "gloo"));
  EXPECT_FALSE(runs_on(value, "nccl")) << "NCCL does not notice the end of a process";
  value = Case();
  value.launch.interface = "lo";
  EXPECT_TRUE(runs_on(value, "gloo"));
  EXPECT_FALSE(runs_on(value, "c10d_gloo")) << "it has a rendezvous of its own";
  value.launch.hosts.emplace_back();
  EXPECT_TRUE(runs_on(value, "sim"));
  EXPECT_FALSE(runs_on(value, "gloo")) << "these hosts are made up";
}

TEST(RunsOnTest, NcclIsNotJudgedWhereTheOrderOfAdditionsMatters) {
  Case value;
  value.world.ranks = 2;
  EXPECT_TRUE(runs_on(value, "nccl"));
  value.world.ranks = 3;
  EXPECT_FALSE(runs_on(value, "nccl"));
  value.data.exact = true;
  EXPECT_TRUE(runs_on(value, "nccl"));
}

}  // namespace
}  // namespace lockstep::harness
