// SPDX-License-Identifier: Apache-2.0
// Joined training against formulas, for every number of iterations per rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>

#include "core/error.h"
#include "tests/core/iteration_mappings.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using Integers = std::vector<std::int64_t>;

std::int64_t longest(const Integers& mapping) {
  return *std::max_element(mapping.begin(), mapping.end());
}

std::int64_t active_in(const Integers& mapping, std::int64_t iteration) {
  return std::count_if(mapping.begin(), mapping.end(),
                       [iteration](std::int64_t count) { return count > iteration; });
}

std::string text(const Integers& mapping) { return ::testing::PrintToString(mapping); }

std::vector<std::string> texts(const std::vector<CollectiveRecord>& log) {
  std::vector<std::string> lines;
  for (const CollectiveRecord& record : log) {
    lines.push_back(to_string(record));
  }
  return lines;
}

// Coefficients are multiples of 12, so that division by 2, 3 and 4 is exact in both roundings of
// G3.
TEST(DdpJoinEquivalenceTest, GradientsAreDividedByTheWorldSizeOrByTheNumberOfActiveRanks) {
  for (const bool by_world_size : {true, false}) {
    for (const bool as_view : {true, false}) {
      JoinOptions join_options;
      join_options.divide_by_initial_world_size = by_world_size;
      DdpOptions options;
      options.gradient_as_bucket_view = as_view;
      for (const Integers& mapping : iteration_mappings(2)) {
        std::vector<double> expected;
        for (std::int64_t i = 0; i < longest(mapping); ++i) {
          std::int64_t sum = 0;
          for (std::size_t q = 0; q < mapping.size(); ++q) {
            sum += mapping[q] > i ? static_cast<std::int64_t>(12 * (q + 1)) : 0;
          }
          const auto divisor =
              by_world_size ? static_cast<std::int64_t>(mapping.size()) : active_in(mapping, i);
          expected.push_back(static_cast<double>(sum) / static_cast<double>(divisor));
        }
        const auto seen = run_ranks(
            static_cast<std::int64_t>(mapping.size()), [&](LocalCommunicator& communicator) {
              const std::int64_t rank = communicator.rank();
              ParameterBank bank = scalar_bank(2);
              BankDdp ddp(bank.ptr(), communicator, options);
              std::vector<double> own;
              ddp.join(
                  [&] {
                    for (std::int64_t i = 0; i < mapping[static_cast<std::size_t>(rank)]; ++i) {
                      bank->zero_grad();
                      train_once(ddp, all_terms(2, static_cast<double>(12 * (rank + 1))));
                      own.push_back(gradients(*bank)[0]);
                    }
                  },
                  join_options);
              return own;
            });
        for (std::size_t rank = 0; rank < seen.size(); ++rank) {
          const std::vector<double> own(expected.begin(), expected.begin() + mapping[rank]);
          EXPECT_EQ(seen[rank], own) << text(mapping);
        }
      }
    }
  }
}

// One weight w, loss 1/2 (w - x)^2, w -= mean gradient / 2. With 2 or 4 ranks all is dyadic.
constexpr double kRate = 0.5;
double input(std::size_t rank, std::int64_t iteration) {
  return static_cast<double>(3 * rank) - static_cast<double>(2 * iteration) + 1.0;
}

struct WeightImpl : torch::nn::Module {
  WeightImpl() : weight(register_parameter("weight", torch::full({1}, 2.0, torch::kDouble))) {}
  at::Tensor forward(double x) { return (weight - x).square().sum() / 2; }
  at::Tensor weight;
};
using WeightDdp = DistributedDataParallel<WeightImpl>;

void step(WeightDdp& ddp, double x) {
  clear_gradients(ddp.module());
  ddp(x).backward();
  const at::NoGradGuard no_grad;
  ddp.module().weight.sub_(ddp.module().weight.grad() * kRate);
}

double trained_locally(double weight, const Integers& mapping) {
  for (std::int64_t i = 0; i < longest(mapping); ++i) {
    double sum = 0;
    for (std::size_t q = 0; q < mapping.size(); ++q) {
      sum += mapping[q] > i ? weight - input(q, i) : 0;
    }
    weight -= kRate * sum / static_cast<double>(mapping.size());
  }
  return weight;
}

TEST(DdpJoinEquivalenceTest, TheFinalModelIsThatOfLocalTrainingOnAllInputsOnEveryRank) {
  for (const Integers& mapping : iteration_mappings(3)) {
    if (mapping.size() == 3) {
      continue;
    }
    // Two epochs: who has joined first trains on with the others' model.
    const Integers again(mapping.rbegin(), mapping.rend());
    const auto weights =
        run_ranks(static_cast<std::int64_t>(mapping.size()), [&](LocalCommunicator& communicator) {
          WeightDdp ddp(std::make_shared<WeightImpl>(), communicator);
          const auto rank = static_cast<std::size_t>(communicator.rank());
          for (const Integers* epoch : {&mapping, &again}) {
            ddp.join([&] {
              for (std::int64_t i = 0; i < (*epoch)[rank]; ++i) {
                step(ddp, input(rank, i));
              }
            });
          }
          return ddp.module().weight.item<double>();
        });
    EXPECT_THAT(weights, Each(trained_locally(trained_locally(2.0, mapping), again)))
        << text(mapping);
  }
}

// A module with a buffer, two parameters in buckets of their own, one of them not always used.
struct MixedImpl : torch::nn::Module {
  MixedImpl()
      : a(register_parameter("a", torch::ones({2}))),
        b(register_parameter("b", torch::ones({3}))),
        factor(register_buffer("factor", torch::ones({1}))) {}
  at::Tensor forward(bool uses_both) {
    const at::Tensor loss = (a * factor).sum();
    return uses_both ? loss + b.sum() : loss;
  }
  at::Tensor a, b, factor;
};

TEST(DdpJoinEquivalenceTest, AllRanksIssueTheSameCollectivesWhateverTheMappingAndTheMode) {
  for (const bool find_unused : {false, true}) {
    DdpOptions options = one_parameter_per_bucket();
    options.find_unused_parameters = find_unused;
    for (const Integers& mapping : iteration_mappings(3)) {
      const auto logs = run_ranks(
          static_cast<std::int64_t>(mapping.size()), [&](LocalCommunicator& communicator) {
            DistributedDataParallel<MixedImpl> ddp(std::make_shared<MixedImpl>(), communicator,
                                                   options);
            communicator.clear_log();
            const std::int64_t rank = communicator.rank();
            ddp.join([&] {
              for (std::int64_t i = 0; i < mapping[static_cast<std::size_t>(rank)]; ++i) {
                ddp(!find_unused || (rank + i) % 2 == 0).backward();
              }
            });
            return texts(communicator.log());
          });
      EXPECT_THAT(logs, Each(logs[0])) << text(mapping);
      const auto count = [&](const std::string& site) {
        return std::count_if(logs[0].begin(), logs[0].end(), [&](const std::string& line) {
          return line.find(" " + site + " ") != std::string::npos;
        });
      };
      const std::int64_t iterations = longest(mapping);
      EXPECT_EQ(count("join_active"), iterations + 1);
      EXPECT_EQ(count("join_plan"), iterations);
      EXPECT_EQ(count("join_source"), iterations + 1);
      EXPECT_EQ(count("buffers"), iterations);
      EXPECT_EQ(count("rebuild_order"), !find_unused && iterations >= 2 ? 1 : 0);
      EXPECT_EQ(count("used_map"), find_unused ? iterations : 0);
      // One bucket in the first iteration unless unused parameters are searched for (C12).
      EXPECT_EQ(count("bucket"), 2 * iterations - (!find_unused && iterations > 0 ? 1 : 0));
      EXPECT_EQ(count("module_states"), 1);
    }
  }
}

TEST(DdpJoinEquivalenceTest, AnIterationIsNotificationPlanRebuildBuffersBucketsAndMap) {
  const auto logs = run_ranks(2, [](LocalCommunicator& communicator) {
    DistributedDataParallel<MixedImpl> ddp(std::make_shared<MixedImpl>(), communicator);
    communicator.clear_log();
    ddp.join([&] {
      for (std::int64_t i = 0; i < 2 * communicator.rank(); ++i) {
        ddp(true).backward();
      }
    });
    return texts(communicator.log());
  });
  EXPECT_THAT(
      logs[0],
      ElementsAre(
          "all_reduce join_active -1 step -1: 1 Long", "all_reduce join_plan -1 step -1: 4 Long",
          "all_reduce join_source -1 step -1: 1 Long", "broadcast buffers 0 step 0: 1 Float",
          "all_reduce bucket 0 step 0: 5 Float",  //
          "all_reduce join_active -1 step -1: 1 Long", "all_reduce join_plan -1 step -1: 4 Long",
          "broadcast rebuild_order -1 step 1: 3 Int", "broadcast rebuild_sizes -1 step 1: 1 Int",
          "all_reduce join_source -1 step -1: 1 Long", "broadcast buffers 0 step 1: 1 Float",
          "all_reduce bucket 0 step 1: 5 Float",  //
          "all_reduce join_active -1 step -1: 1 Long", "all_reduce join_source -1 step -1: 1 Long",
          "broadcast module_states 0 step -1: 6 Float"));
  EXPECT_EQ(logs[1], logs[0]);
}

// Gradients arrive in reverse order; a rank 0 that never saw one proposes the order of declaration.
TEST(DdpJoinEquivalenceTest, BucketsAreRebuiltFromRankZeroEvenIfItHadNoInput) {
  for (const bool rank_zero_trains : {true, false}) {
    const auto layouts = run_ranks(3, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(3);
      BankDdp ddp(bank.ptr(), communicator, one_parameter_per_bucket());
      ddp.join([&] {
        const bool trains = communicator.rank() == 0 ? rank_zero_trains : true;
        for (int i = 0; i < (trains ? 3 : 0); ++i) {
          train_once(ddp, all_terms(3));
        }
      });
      return ddp.engine().bucket_layout()->buckets;
    });
    using Layout = std::vector<Integers>;
    EXPECT_THAT(layouts, Each(rank_zero_trains ? Layout{{2}, {1}, {0}} : Layout{{0}, {1}, {2}}));
  }
}

// What the tests above would see without shadowing: ranks of unequal length do not meet.
TEST(DdpJoinEquivalenceTest, WithoutJoinUnequalRanksLoseEachOther) {
  const auto outcomes = try_run_ranks(2, [](LocalCommunicator& communicator) {
    WeightDdp ddp(std::make_shared<WeightImpl>(), communicator);
    JoinOptions options;
    options.enable = false;
    ddp.join(
        [&] {
          for (std::int64_t i = 0; i < communicator.rank(); ++i) {
            step(ddp, 1.0);
          }
        },
        options);
  });
  EXPECT_TRUE(outcomes[1].error_as<PeerLost>().has_value());
}

}  // namespace
}  // namespace lockstep::test
