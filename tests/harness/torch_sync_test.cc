// SPDX-License-Identifier: Apache-2.0
// PyTorch's reducer beside ours: alike where both are right, and a broken peer is noticed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <tuple>

#include "core/error.h"
#include "harness/judge/judge.h"
#include "harness/judge/peer_comparison.h"
#include "harness/program.h"
#include "harness/rank_body.h"
#include "harness/scenario.h"
#include "sim/world.h"

namespace lockstep::harness {
namespace {

// Inside a test, `Run` is GoogleTest's.
using TrainingRun = Run;

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// 3 ranks, so that dividing and adding round; several buckets; 4 steps.
Case small_case() {
  Case value;
  value.world.ranks = 3;
  value.model.widths = {5, 7, 3};
  value.train.steps = 4;
  value.ddp.bucket_cap_bytes = 64;
  return value;
}

Case with_torch(Case value) {
  value.ddp.sync = "torch";
  return value;
}

TrainingRun simulate(const Case& value) {
  return make_sim_executor()->execute(compile_subject(value));
}

class PlantedWork final : public Work {
 public:
  void wait() override { throw PeerLost("planted: the peer is gone"); }
};

enum class Fault { kScales, kLosesPeer };

struct Planted {
  Fault fault;
  CollectiveTag where;
};

// Spoils the launch of one collective, or lets its wait fail.
class PlantedCommunicator final : public Communicator {
 public:
  PlantedCommunicator(Communicator& inner, const Planted& planted)
      : inner_(inner), planted_(planted) {}

  std::int64_t rank() const override { return inner_.rank(); }
  std::int64_t world_size() const override { return inner_.world_size(); }
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override {
    if (tag == planted_.where) {
      if (planted_.fault == Fault::kLosesPeer) {
        return std::make_unique<PlantedWork>();
      }
      tensor.mul_(2);
    }
    return inner_.all_reduce(std::move(tensor), op, tag);
  }
  std::unique_ptr<Work> broadcast(at::Tensor tensor, std::int64_t root,
                                  CollectiveTag tag) override {
    return inner_.broadcast(std::move(tensor), root, tag);
  }
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input,
                                   CollectiveTag tag) override {
    return inner_.all_gather(std::move(output), std::move(input), tag);
  }
  std::unique_ptr<Work> barrier(CollectiveTag tag) override { return inner_.barrier(tag); }

 private:
  Communicator& inner_;
  Planted planted_;
};

TrainingRun simulate_with(const Case& value, const Planted& planted) {
  const Program program = compile_subject(value);
  TrainingRun run;
  run.ranks.resize(static_cast<std::size_t>(value.world.ranks));
  sim::WorldOptions options;
  options.world_size = value.world.ranks;
  sim::run_world(options, [&](sim::RankContext& context) {
    PlantedCommunicator communicator(context.communicator(), planted);
    RankBody body(program, context.rank(), {&communicator, &context.observer(), {}, {}, {}});
    body.run();
    run.ranks[static_cast<std::size_t>(context.rank())] = body.take_record();
  });
  return run;
}

TEST(TorchSyncTest, DoesWhatOursDoes) {
  for (const bool as_view : {false, true}) {
    for (const std::string option : {"", "find_unused_parameters", "static_graph"}) {
      Case value = small_case();
      value.ddp.gradient_as_bucket_view = as_view;
      value.ddp.find_unused_parameters = option == "find_unused_parameters";
      value.ddp.static_graph = option == "static_graph";
      const TrainingRun ours = simulate(value);
      ASSERT_EQ(ours.ranks[0].steps.size(), 4U);
      EXPECT_THAT(differences(ours, simulate(with_torch(value)), "torch"), IsEmpty()) << option;
    }
  }
}

TEST(TorchSyncTest, TellsOfItsBucketsAndRebuilds) {
  // 4 tensors of 20, 28, 12 and 140 bytes or more than the cap: one bucket in the first step, and
  // after the rebuild {layer1.bias, layer1.weight}, {layer0.bias, layer0.weight}.
  const RankRun rank = simulate(with_torch(small_case())).ranks[0];
  EXPECT_EQ(rank.rebuilds, 1);
  EXPECT_EQ(rank.bucket_all_reduces, 1 + 3 * 2);
  EXPECT_EQ(rank.steps[0].plans[0]->buckets.size(), 1U);
  EXPECT_THAT(rank.steps[3].plans[0]->buckets, ElementsAre(ElementsAre(3, 2), ElementsAre(1, 0)));
}

TEST(TorchSyncTest, APeerWhoseBucketIsScaledIsNoticed) {
  const Case value = small_case();
  const Planted planted{Fault::kScales, {CallSite::kBucket, 2, 1}};
  const auto found =
      differences(simulate(value), simulate_with(with_torch(value), planted), "torch");
  EXPECT_THAT(found, Each(HasSubstr("step 2, gradient layer0.")));
  EXPECT_EQ(found.size(), 3U);
}

TEST(TorchSyncTest, WhatACollectiveThrowsComesOutOfBackward) {
  // Dynamic: from hooks. Static: step 0 reduces in one block, steps 2 and later from hooks (L3).
  for (const auto& [is_static, step, bucket] :
       {std::tuple(false, 0, 0), {false, 2, 1}, {true, 0, 0}, {true, 2, 1}}) {
    Case value = with_torch(small_case());
    value.ddp.static_graph = is_static;
    const Planted planted{Fault::kLosesPeer, {CallSite::kBucket, step, bucket}};
    for (const RankRun& rank : simulate_with(value, planted).ranks) {
      EXPECT_EQ(rank.ending, Ending::kFailed);
      EXPECT_EQ(rank.error_kind, "peer_lost");
      EXPECT_EQ(rank.error_message, "planted: the peer is gone");
      EXPECT_EQ(rank.at_step, step);
      EXPECT_EQ(rank.at_phase, "backward");
    }
  }
}

TEST(TorchSyncTest, TheDeadlockOfAMissingFindUnusedIsFoundAndCured) {
  const auto file = std::string(LOCKSTEP_SCENARIOS_DIR) +
                    "/quickstart/missing_find_unused_parameters_deadlocks.toml";
  NamedCase named = load_scenarios({file}).cases.front();
  named.value = with_torch(named.value);
  const auto simulator = make_sim_executor();
  JudgeOptions options;
  options.executor = options.simulator = simulator.get();
  const CaseResult result = judge_case(named, options);
  EXPECT_EQ(result.outcome.kind, OutcomeKind::kDeadlock);
  EXPECT_THAT(result.complaints, IsEmpty());
  ASSERT_TRUE(result.outcome.cure.has_value());
  EXPECT_EQ(result.outcome.cure->name, "find_unused_parameters");
}

TEST(TorchSyncTest, AnUnfinishedReductionNamesItsParameters) {
  const std::string text = R"(schema = 1
[model]
kind = "graph"
blocks = { a = "linear 4 4", b = "linear 4 4" }
[[at]]
step = 1
skip = ["b"]
[expect]
outcome = "error"
)";
  const Case value = with_torch(parse_scenario_text(text, "t").front().value);
  const RankRun rank = simulate(value).ranks[0];
  EXPECT_EQ(rank.error_kind, "reduction_unfinished");
  EXPECT_THAT(rank.error_message, HasSubstr("(not ready: b.weight, b.bias)"));
  EXPECT_EQ(rank.never_ready.size(), 2U);
}

TEST(TorchSyncTest, AgainstTorchComplainsOfADifferenceWithoutReason) {
  const auto file = std::string(LOCKSTEP_SCENARIOS_DIR) + "/peer/rank_uses_no_parameter.toml";
  NamedCase named = load_scenarios({file}).cases.front();
  const auto simulator = make_sim_executor();
  JudgeOptions options;
  options.executor = options.simulator = simulator.get();
  options.against_torch = true;
  EXPECT_THAT(judge_case(named, options).complaints, IsEmpty());
  named.value.expect_torch.clear();
  EXPECT_THAT(judge_case(named, options).complaints,
              Contains(HasSubstr("torch waits in all_reduce (bucket 0, step 1)")));
}

}  // namespace
}  // namespace lockstep::harness
