// SPDX-License-Identifier: Apache-2.0
// PowerSGD against a serial computation of the same formulas, bit for bit.
#include "core/power_sgd_hook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>

#include "core/error.h"
#include "core/rng.h"
#include "tests/core/dictated.h"
#include "tests/core/parameter_bank.h"
#include "tests/support/run_ranks.h"

namespace lockstep::test {
namespace {

constexpr std::int64_t kRows = 6;
constexpr std::int64_t kColumns = 5;
constexpr std::int64_t kNumBiases = 3;

at::Tensor weight_gradient(std::int64_t rank, std::int64_t step) {
  return sevenths(rank, {kRows, kColumns}) +
         at::eye(kRows).narrow(1, 0, kColumns) * static_cast<double>(step + 1);
}

// All ranks at once: the gradients of the weight, step by step (see Note [PowerSGD]).
std::vector<at::Tensor> serial_run(std::int64_t world_size, std::int64_t num_steps,
                                   const PowerSgdOptions& options) {
  const auto ranks = static_cast<double>(world_size);
  std::vector<at::Tensor> lost(static_cast<std::size_t>(world_size), at::zeros({kRows, kColumns}));
  at::Tensor q;
  std::vector<at::Tensor> averages;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    if (step < options.start_iter) {
      averages.push_back(sum_over(
          world_size, [&](std::int64_t rank) { return weight_gradient(rank, step) / ranks; }));
      continue;
    }
    const auto input = [&](std::int64_t rank) {
      const at::Tensor gradient = weight_gradient(rank, step);
      return options.use_error_feedback ? gradient + lost[static_cast<std::size_t>(rank)]
                                        : gradient;
    };
    if (!q.defined() || !options.warm_start) {
      CounterRng rng(options.seed, RngStream::kOther, 0, options.warm_start ? 0 : step);
      const at::Tensor drawn = at::empty({kColumns, options.rank}, at::kDouble);
      std::generate_n(drawn.data_ptr<double>(), drawn.numel(), [&rng] { return rng.normal(); });
      q = drawn.to(at::kFloat);
    }
    orthogonalize(q);
    const at::Tensor p = sum_over(world_size, [&](std::int64_t r) { return input(r).matmul(q); });
    orthogonalize(p);
    q = sum_over(world_size, [&](std::int64_t r) { return input(r).t().matmul(p); }) / ranks;
    averages.push_back(p.matmul(q.t()));
    for (std::int64_t rank = 0; rank < world_size; ++rank) {
      lost[static_cast<std::size_t>(rank)] = input(rank) - averages.back();
    }
  }
  return averages;
}

std::vector<std::vector<std::vector<at::Tensor>>> run(std::int64_t world_size,
                                                      std::int64_t num_steps,
                                                      const PowerSgdOptions& options,
                                                      const DdpOptions& ddp_options) {
  return run_ranks(world_size, [&](LocalCommunicator& communicator) {
    const auto module = std::make_shared<DictatedImpl>(
        std::vector<at::Tensor>{at::zeros({kRows, kColumns}), at::zeros({kNumBiases})});
    DictatedDdp ddp(module, communicator, ddp_options);
    ddp.register_comm_hook(power_sgd_hook(communicator, options), "power_sgd");
    std::vector<std::vector<at::Tensor>> seen;
    for (std::int64_t step = 0; step < num_steps; ++step) {
      module->zero_grad();
      ddp(std::vector<at::Tensor>{weight_gradient(communicator.rank(), step),
                                  sevenths(communicator.rank(), {kNumBiases})})
          .backward();
      seen.push_back(gradient_tensors(*module));
    }
    return seen;
  });
}

TEST(PowerSgdHookTest, FollowsTheSerialComputationWithAndWithoutMemory) {
  constexpr std::int64_t kNumSteps = 5;
  for (const std::int64_t world_size : {1, 2, 3, 4}) {
    for (const bool as_view : {false, true}) {
      for (const bool remembers : {false, true}) {
        PowerSgdOptions options;
        options.rank = 2;
        options.min_compression_rate = 1.0;  // (6 + 5) * 2 < 30
        options.use_error_feedback = remembers;
        options.warm_start = remembers;
        options.seed = 7;
        DdpOptions ddp_options = one_parameter_per_bucket();
        ddp_options.gradient_as_bucket_view = as_view;
        const auto expected = serial_run(world_size, kNumSteps, options);
        const at::Tensor bias = sum_over(world_size, [&](std::int64_t rank) {
          return sevenths(rank, {kNumBiases}) / static_cast<double>(world_size);
        });
        for (const auto& of_rank : run(world_size, kNumSteps, options, ddp_options)) {
          for (std::size_t step = 0; step < of_rank.size(); ++step) {
            EXPECT_TRUE(same(of_rank[step][0], expected[step]))
                << world_size << " ranks, views " << as_view << ", memory " << remembers
                << ", step " << step;
            EXPECT_TRUE(same(of_rank[step][1], bias));
          }
        }
      }
    }
  }
}

// In one bucket with the weight, the bias is reduced by a collective of its own: sum, then
// quotient.
TEST(PowerSgdHookTest, PlainGradientsBesideACompressedOneAreAveraged) {
  PowerSgdOptions options;
  options.min_compression_rate = 1.0;
  for (const auto& of_rank : run(3, 3, options, {})) {
    EXPECT_TRUE(same(of_rank[2][1], sum_over(3, [](std::int64_t rank) {
                                      return sevenths(rank, {kNumBiases});
                                    }) / 3.0));
    EXPECT_FALSE(same(of_rank[2][0], of_rank[1][0]));
  }
}

// (6 + 5) * 1 * 2.8 = 30.8 is not less than 30, and (6 + 5) * 1 * 2.7 = 29.7 is.
TEST(PowerSgdHookTest, CompressesOnlyWhatShrinksEnough) {
  for (const double rate : {2.7, 2.8}) {
    PowerSgdOptions options;
    options.min_compression_rate = rate;
    const at::Tensor average =
        sum_over(2, [](std::int64_t rank) { return weight_gradient(rank, 2) / 2.0; });
    for (const auto& of_rank : run(2, 3, options, {})) {
      EXPECT_EQ(same(of_rank[2][0], average), rate == 2.8);
    }
  }
}

// A matrix in channels_last order is the same matrix.
TEST(PowerSgdHookTest, TheLayoutOfAParameterDoesNotMatter) {
  const auto run_with = [](bool transposed) {
    return run_ranks(2, [&](LocalCommunicator& communicator) {
      const at::Tensor value =
          transposed ? at::zeros({kColumns, kRows}).t() : at::zeros({kRows, kColumns});
      const auto module = std::make_shared<DictatedImpl>(std::vector<at::Tensor>{value});
      DictatedDdp ddp(module, communicator);
      PowerSgdOptions options;
      options.start_iter = 0;
      options.use_error_feedback = options.warm_start = false;
      ddp.register_comm_hook(power_sgd_hook(communicator, options), "power_sgd");
      ddp(std::vector<at::Tensor>{at::eye(kRows).narrow(1, 0, kColumns)}).backward();
      return gradient_tensors(*module)[0].contiguous();
    });
  };
  EXPECT_TRUE(same(run_with(true)[1], run_with(false)[0]));
}

TEST(PowerSgdHookTest, AGradientThatVanishedOnceIsCompressedAgain) {
  const auto results = run_ranks(1, [](LocalCommunicator& communicator) {
    const auto module =
        std::make_shared<DictatedImpl>(std::vector<at::Tensor>{at::zeros({kRows, kColumns})});
    DictatedDdp ddp(module, communicator);
    ddp.register_comm_hook(power_sgd_hook(communicator), "power_sgd");
    std::vector<bool> is_zero;
    for (const double scale : {1.0, 1.0, 0.0, 1.0}) {
      module->zero_grad();
      ddp(std::vector<at::Tensor>{at::ones({kRows, kColumns}) * scale}).backward();
      is_zero.push_back(module->values[0].grad().eq(0).all().item<bool>());
    }
    return is_zero;
  });
  EXPECT_THAT(results[0], ::testing::ElementsAre(false, false, true, false));
}

TEST(PowerSgdHookTest, OrthogonalizeGivesOrthonormalColumnsAndTellsOfVanishingOnes) {
  const at::Tensor swapped = at::tensor({0.0F, 2.0F, 3.0F, 0.0F}).view({2, 2});
  EXPECT_TRUE(orthogonalize(swapped));
  EXPECT_TRUE(swapped.equal(at::tensor({0.0F, 1.0F, 1.0F, 0.0F}).view({2, 2})));
  // (0, 1) + 5 (1, 0): the part along the first column is taken away.
  const at::Tensor skewed = at::tensor({1.0F, 5.0F, 0.0F, 1.0F}).view({2, 2});
  EXPECT_TRUE(orthogonalize(skewed));
  EXPECT_TRUE(skewed.equal(at::eye(2)));
  const at::Tensor dependent = at::tensor({2.0F, 6.0F, 0.0F, 0.0F}).view({2, 2});
  EXPECT_FALSE(orthogonalize(dependent));
  EXPECT_TRUE(dependent.equal(at::tensor({1.0F, 0.0F, 0.0F, 0.0F}).view({2, 2})));
}

TEST(PowerSgdHookTest, MemoryNeedsTwoPlainIterations) {
  run_ranks(1, [](LocalCommunicator& communicator) {
    for (const bool error_feedback : {false, true}) {
      for (const bool warm_start : {false, true}) {
        for (const std::int64_t start_iter : {0, 1, 2}) {
          PowerSgdOptions options;
          options.use_error_feedback = error_feedback;
          options.warm_start = warm_start;
          options.start_iter = start_iter;
          if ((error_feedback || warm_start) && start_iter < 2) {
            EXPECT_THROW(power_sgd_hook(communicator, options), UsageError);
          } else {
            EXPECT_NO_THROW(power_sgd_hook(communicator, options));
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::test
