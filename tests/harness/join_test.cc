// SPDX-License-Identifier: Apache-2.0
// Uneven inputs: what is compiled, what is compared, what would cure them; ours and PyTorch's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "harness/judge/judge.h"
#include "harness/judge/peer_comparison.h"
#include "harness/program.h"
#include "harness/scenario.h"

namespace lockstep::harness {
namespace {

// Inside a test, `Run` is GoogleTest's.
using TrainingRun = Run;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Three ranks, of which rank 0 has a single input.
Case uneven_case() {
  Case value;
  value.world.ranks = 3;
  value.model.kind = "graph";
  value.model.blocks = {{"a", "linear 4 6"}, {"norm", "batch_norm 6"}, {"b", "linear 6 2"}};
  value.train.steps_of_rank = {1, 3, 2};
  value.ddp.bucket_cap_bytes = 64;
  value.ddp.join = "divide_by_initial";
  value.expect.oracles = {"ranks", "replay"};
  return value;
}

class UnevenInputsTest : public ::testing::Test {
 protected:
  TrainingRun run(const Case& value) { return simulator_->execute(compile_subject(value)); }
  Outcome judge(const Case& value, const TrainingRun& run) {
    return judge_run(value, value.expect, run, simulator_.get(), nullptr);
  }
  std::vector<std::string> differences_of(const Case& value) {
    return compare_with_torch(value, run(value), *simulator_).differences;
  }

  std::unique_ptr<Executor> simulator_ = make_sim_executor();
};

void nudge(Snapshot& snapshot) {
  float value;
  std::memcpy(&value, snapshot.bytes.data(), sizeof value);
  value = std::nextafter(value, INFINITY);
  std::memcpy(snapshot.bytes.data(), &value, sizeof value);
}

TEST_F(UnevenInputsTest, InsideJoinARankThatLeavesHasNoMoreInputs) {
  Case value = uneven_case();
  EXPECT_THAT(steps_by_rank(value), ElementsAre(1, 3, 2));
  AtSpec leave;
  leave.leave = true;
  leave.ranks = {1};
  leave.steps = {2, 1};
  value.at = {leave};
  EXPECT_THAT(steps_by_rank(value), ElementsAre(1, 1, 2));
  value.at.front().when = "after_step";
  EXPECT_THAT(steps_by_rank(value), ElementsAre(1, 2, 2));
  // The subject has them and leaves by itself.
  EXPECT_EQ(compile_subject(value).ranks[1].steps.size(), 3U);
  EXPECT_EQ(compile_replay(value).ranks[1].steps.size(), 2U);
  value.ddp.join = "off";
  EXPECT_THAT(steps_by_rank(value), ElementsAre(1, 3, 2));
}

TEST_F(UnevenInputsTest, TheSerialBatchHasTheSamplesOfActiveRanksAndTheDivisorOfTheJoin) {
  Case value = uneven_case();  // 3, 2 and 1 active ranks with 4 samples each
  for (const bool by_active : {false, true}) {
    value.ddp.join = by_active ? "divide_by_active" : "divide_by_initial";
    const RankProgram serial = compile_serial(value).ranks.front();
    ASSERT_EQ(serial.steps.size(), 3U);
    for (std::size_t step = 0; step < 3; ++step) {
      const Part& part = serial.steps[step].micro_batches.front().parts.front();
      EXPECT_EQ(part.samples.size(), 4 * (3 - step));
      EXPECT_EQ(part.mean_over, by_active ? 4 * (3 - static_cast<std::int64_t>(step)) : 12);
    }
  }
}

TEST_F(UnevenInputsTest, AreEqualToTheReplayAndEndAlike) {
  const Case value = uneven_case();
  const TrainingRun sound = run(value);
  EXPECT_EQ(judge(value, sound).kind, OutcomeKind::kEqual);
  EXPECT_EQ(sound.ranks[0].steps.size(), 1U);
  EXPECT_EQ(sound.ranks[1].steps.size(), 3U);
  EXPECT_EQ(sound.ranks[0].final_parameters.bytes, sound.ranks[1].steps[2].parameters.bytes);
  EXPECT_EQ(sound.ranks[0].final_buffers.bytes, sound.ranks[1].steps[2].buffers.bytes);
}

TEST_F(UnevenInputsTest, AStepThatRankZeroHasNoInputsForIsComparedToo) {
  const Case value = uneven_case();
  TrainingRun spoilt = run(value);
  nudge(spoilt.ranks[2].steps[1].gradients);
  Outcome outcome = judge(value, spoilt);
  ASSERT_EQ(outcome.kind, OutcomeKind::kDiverged);
  EXPECT_EQ(outcome.divergence->phase, "gradient");
  EXPECT_EQ(outcome.divergence->step, 1);
  EXPECT_THAT(outcome.divergence->ranks, ElementsAre(2));

  spoilt = run(value);
  spoilt.ranks[1].steps[2].losses[0] += 1e-3;
  outcome = judge(value, spoilt);
  EXPECT_EQ(outcome.divergence->phase, "forward");
  EXPECT_EQ(outcome.divergence->step, 2);
  EXPECT_THAT(outcome.divergence->ranks, ElementsAre(1));

  spoilt = run(value);
  nudge(spoilt.ranks[1].steps[2].buffers);
  outcome = judge(value, spoilt);
  EXPECT_EQ(outcome.divergence->phase, "buffer");
  EXPECT_EQ(outcome.divergence->step, 2);
}

TEST_F(UnevenInputsTest, AnotherEndOfOneRankIsADivergence) {
  const Case value = uneven_case();
  TrainingRun spoilt = run(value);
  nudge(spoilt.ranks[0].final_parameters);
  Outcome outcome = judge(value, spoilt);
  ASSERT_EQ(outcome.kind, OutcomeKind::kDiverged);
  EXPECT_EQ(outcome.divergence->phase, "final");
  EXPECT_EQ(outcome.divergence->oracle, "ranks");
  EXPECT_THAT(outcome.divergence->ranks, ElementsAre(0));

  spoilt = run(value);
  for (RankRun& rank : spoilt.ranks) {
    nudge(rank.final_parameters);
  }
  outcome = judge(value, spoilt);
  EXPECT_EQ(outcome.divergence->phase, "final");
  EXPECT_EQ(outcome.divergence->oracle, "replay");

  spoilt = run(value);
  nudge(spoilt.ranks[2].final_buffers);
  outcome = judge(value, spoilt);
  EXPECT_EQ(outcome.divergence->phase, "final");
  EXPECT_THAT(outcome.divergence->ranks, ElementsAre(2));
}

TEST_F(UnevenInputsTest, WithoutJoinTheyDeadlockAndJoinIsTheCure) {
  Case value = uneven_case();
  value.ddp.join = "off";
  const Outcome outcome = judge(value, run(value));
  EXPECT_EQ(outcome.kind, OutcomeKind::kDeadlock);
  ASSERT_TRUE(outcome.cure.has_value());
  EXPECT_EQ(outcome.cure->name, "join");
}

// An exception has nothing to do with inputs, which are even.
TEST_F(UnevenInputsTest, JoinIsNoCureWhereInputsAreEven) {
  Case value = uneven_case();
  value.ddp.join = "off";
  value.train.steps_of_rank.clear();
  value.at.emplace_back();
  value.at.front().ranks = {1};
  value.at.front().steps = {1};
  value.at.front().raise = "no memory";
  const Outcome outcome = judge(value, run(value));
  EXPECT_EQ(outcome.kind, OutcomeKind::kDeadlock);
  EXPECT_FALSE(outcome.cures_tried.empty());
  for (const TriedCure& tried : outcome.cures_tried) {
    EXPECT_NE(tried.name.substr(0, 4), "join");
  }
}

#ifdef LOCKSTEP_WITH_TORCH_REDUCER
TEST_F(UnevenInputsTest, TorchDoesWhatOursDoes) {
  for (const std::string join : {"divide_by_initial", "divide_by_active", "throw"}) {
    for (const std::string option : {"", "find_unused", "views", "windows", "static_graph"}) {
      Case value = uneven_case();
      value.ddp.join = join;
      value.ddp.find_unused_parameters = option == "find_unused";
      value.ddp.gradient_as_bucket_view = option == "views";
      value.ddp.static_graph = option == "static_graph";
      value.train.micro_batches = option == "windows" ? 2 : 1;
      EXPECT_THAT(differences_of(value), IsEmpty()) << join << " " << option;
    }
  }
}

TEST_F(UnevenInputsTest, TorchAgreesWhereRankZeroNeverTrains) {
  Case value = uneven_case();
  value.train.steps = 4;
  for (const std::vector<std::int64_t>& steps :
       {std::vector<std::int64_t>{0, 4, 2}, {0, 4, 4}, {0, 0, 4}}) {
    value.train.steps_of_rank = steps;
    EXPECT_THAT(differences_of(value), IsEmpty());
  }
}

TEST_F(UnevenInputsTest, TorchHasTheSameHooks) {
  for (const std::string hook : {"all_reduce", "fp16_compress"}) {
    for (const std::string join : {"off", "divide_by_active"}) {
      Case value = uneven_case();
      value.ddp.hook = hook;
      value.ddp.join = join;
      if (join == "off") {
        value.train.steps_of_rank.clear();
      }
      EXPECT_THAT(differences_of(value), IsEmpty()) << hook << " " << join;
    }
  }
}

TEST_F(UnevenInputsTest, ADifferenceAtTheEndOfJoinIsNoticed) {
  const Case value = uneven_case();
  TrainingRun spoilt = run(value);
  nudge(spoilt.ranks[0].final_buffers);
  EXPECT_THAT(compare_with_torch(value, spoilt, *simulator_).differences,
              ElementsAre(HasSubstr("the end of join, buffer norm.running_mean")));
}
#endif

}  // namespace
}  // namespace lockstep::harness
