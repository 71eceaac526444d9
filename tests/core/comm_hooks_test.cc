// SPDX-License-Identifier: Apache-2.0
// Every built-in hook against its formula, bit for bit.
#include "core/comm_hooks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/error.h"
#include "tests/core/dictated.h"
#include "tests/core/parameter_bank.h"
#include "tests/support/run_ranks.h"

namespace lockstep::test {
namespace {

using MakeHook = std::function<CommHook(LocalCommunicator&)>;
// The expected gradient of a bucket that holds `size` elements, on `rank` of `world_size`.
using Formula =
    std::function<at::Tensor(std::int64_t rank, std::int64_t world_size, std::int64_t size)>;

constexpr std::int64_t kNumel = 11;

// One parameter, so that one bucket is one gradient. Every step must give the same: the first with
// an undefined gradient, the second after the rebuild, the third in view mode inside the bucket.
void expect_formula(const MakeHook& make_hook, const Formula& formula) {
  for (const std::int64_t world_size : {1, 2, 3, 4}) {
    for (const bool as_view : {false, true}) {
      const auto results = run_ranks(world_size, [&](LocalCommunicator& communicator) {
        const auto module =
            std::make_shared<DictatedImpl>(std::vector<at::Tensor>{at::zeros({kNumel})});
        DdpOptions options;
        options.gradient_as_bucket_view = as_view;
        DictatedDdp ddp(module, communicator, options);
        ddp.register_comm_hook(make_hook(communicator), "under test");
        std::vector<at::Tensor> seen;
        for (int step = 0; step < 3; ++step) {
          module->zero_grad();
          ddp(std::vector<at::Tensor>{sevenths(communicator.rank(), {kNumel})}).backward();
          seen.push_back(gradient_tensors(*module)[0]);
        }
        return seen;
      });
      for (std::int64_t rank = 0; rank < world_size; ++rank) {
        const at::Tensor expected = formula(rank, world_size, kNumel);
        for (const at::Tensor& seen : results[static_cast<std::size_t>(rank)]) {
          EXPECT_TRUE(same(seen, expected))
              << "rank " << rank << " of " << world_size << ", views " << as_view << ": " << seen
              << " instead of " << expected;
        }
      }
    }
  }
}

TEST(CommHooksTest, AllReduceSumsTrueQuotients) {
  expect_formula(all_reduce_hook, [](std::int64_t, std::int64_t world_size, std::int64_t size) {
    return sum_over(world_size, [&](std::int64_t rank) {
      return sevenths(rank, {size}) / static_cast<double>(world_size);
    });
  });
}

TEST(CommHooksTest, CompressionCastsThenDividesThenSumsInTheLowType) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    expect_formula(dtype == at::kHalf ? fp16_compress_hook : bf16_compress_hook,
                   [&](std::int64_t, std::int64_t world_size, std::int64_t size) {
                     return sum_over(world_size,
                                     [&](std::int64_t rank) {
                                       return sevenths(rank, {size}).to(dtype) /
                                              static_cast<double>(world_size);
                                     })
                         .to(at::kFloat);
                   });
  }
}

TEST(CommHooksTest, HalfPrecisionOverflowsBeforeTheDivision) {
  const auto results = run_ranks(4, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    ddp.register_comm_hook(fp16_compress_hook(communicator), "fp16");
    train_once(ddp, {{0, 70000.0}});
    return gradients(*bank)[0];
  });
  EXPECT_EQ(results[0], std::numeric_limits<double>::infinity());
}

TEST(CommHooksTest, NoopLeavesLocalUndividedGradients) {
  expect_formula(
      [](LocalCommunicator&) { return noop_hook(); },
      [](std::int64_t rank, std::int64_t, std::int64_t size) { return sevenths(rank, {size}); });
}

// Note [Quantised buckets], element by element, for one group.
std::vector<float> quantised(const std::vector<float>& values) {
  const float low = std::min(*std::min_element(values.begin(), values.end()), 0.0F);
  const float high = std::max(*std::max_element(values.begin(), values.end()), 0.0F);
  const float scale = std::max((high - low) / 255.0F, std::numeric_limits<float>::epsilon());
  const float zero = std::clamp(-std::nearbyint(low / scale), 0.0F, 255.0F);
  std::vector<float> restored;
  for (const float value : values) {
    const float q = std::clamp(std::nearbyint(value / scale) + zero, 0.0F, 255.0F);
    restored.push_back((q - zero) * scale);
  }
  return restored;
}

// Groups of `group` elements, the last filled up with zeros.
at::Tensor quantised_mean(std::int64_t world_size, std::int64_t size, std::int64_t group) {
  std::vector<float> sum(static_cast<std::size_t>(size), 0.0F);
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    const at::Tensor gradient = sevenths(rank, {size});
    for (std::int64_t first = 0; first < size; first += group) {
      std::vector<float> values(static_cast<std::size_t>(group), 0.0F);
      const std::int64_t count = std::min(group, size - first);
      std::copy_n(gradient.data_ptr<float>() + first, count, values.begin());
      const std::vector<float> restored = quantised(values);
      for (std::int64_t i = 0; i < count; ++i) {
        sum[static_cast<std::size_t>(first + i)] += restored[static_cast<std::size_t>(i)];
      }
    }
  }
  for (float& value : sum) {
    value /= static_cast<float>(world_size);
  }
  return at::tensor(sum);
}

TEST(CommHooksTest, QuantisationPerTensorFollowsItsFormula) {
  expect_formula(quantize_per_tensor_hook,
                 [](std::int64_t, std::int64_t world_size, std::int64_t size) {
                   return quantised_mean(world_size, size, size);
                 });
}

TEST(CommHooksTest, QuantisationPerChannelFollowsItsFormula) {
  for (const std::int64_t channel_numel : {1, 4, 11, 512}) {
    expect_formula(
        [&](LocalCommunicator& communicator) {
          return quantize_per_channel_hook(communicator, channel_numel);
        },
        [&](std::int64_t, std::int64_t world_size, std::int64_t size) {
          return quantised_mean(world_size, size, channel_numel);
        });
  }
}

TEST(CommHooksTest, QuantisedZerosStayZeros) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator);
    ddp.register_comm_hook(quantize_per_tensor_hook(communicator), "quantize");
    train_once(ddp, all_terms(2, 0.0));
    return gradients(*bank);
  });
  EXPECT_THAT(results[0], ::testing::ElementsAre(0, 0));
}

// Subgroups {0, 1} and {2, 3}, as far as these ranks exist. Two iterations of two buckets are
// global, the others local.
TEST(CommHooksTest, PostLocalSgdAveragesOverAllRanksFirstAndOverASubgroupLater) {
  const auto mean = [](std::int64_t first, std::int64_t count) {
    return sum_over(count, [&](std::int64_t i) {
      return sevenths(first + i, {kNumel}) / static_cast<double>(count);
    });
  };
  for (const std::int64_t world_size : {1, 2, 3, 4}) {
    const auto subgroup_size = [&](std::int64_t rank) {
      return std::min<std::int64_t>(2, world_size - rank / 2 * 2);
    };
    for (const bool has_subgroup : {true, false}) {
      for (const bool as_view : {false, true}) {
        std::vector<std::shared_ptr<LocalGroup>> pairs;
        for (std::int64_t rank = 0; rank < world_size; rank += 2) {
          pairs.push_back(std::make_shared<LocalGroup>(subgroup_size(rank)));
        }
        const auto results = run_ranks(world_size, [&](LocalCommunicator& communicator) {
          const std::int64_t rank = communicator.rank();
          LocalCommunicator pair(pairs[static_cast<std::size_t>(rank / 2)], rank % 2);
          const auto module = std::make_shared<DictatedImpl>(
              std::vector<at::Tensor>{at::zeros({kNumel}), at::zeros({kNumel})});
          DdpOptions ddp_options = one_parameter_per_bucket();
          ddp_options.gradient_as_bucket_view = as_view;
          DictatedDdp ddp(module, communicator, ddp_options);
          PostLocalSgdOptions options;
          options.start_iter = 2;
          options.subgroup = has_subgroup ? &pair : nullptr;
          ddp.register_comm_hook(post_local_sgd_hook(communicator, options), "post-local");
          std::vector<at::Tensor> seen;
          for (int step = 0; step < 4; ++step) {
            module->zero_grad();
            const at::Tensor mine = sevenths(rank, {kNumel});
            ddp(std::vector<at::Tensor>{mine, mine}).backward();
            for (const at::Tensor& gradient : gradient_tensors(*module)) {
              seen.push_back(gradient);
            }
          }
          return seen;
        });
        for (std::int64_t rank = 0; rank < world_size; ++rank) {
          const at::Tensor local =
              has_subgroup ? mean(rank / 2 * 2, subgroup_size(rank)) : sevenths(rank, {kNumel});
          const auto& seen = results[static_cast<std::size_t>(rank)];
          for (std::size_t i = 0; i < seen.size(); ++i) {
            EXPECT_TRUE(same(seen[i], i < 4 ? mean(0, world_size) : local))
                << "rank " << rank << " of " << world_size << ", gradient " << i;
          }
        }
      }
    }
  }
}

TEST(CommHooksTest, RefuseOptionsOutsideTheirBounds) {
  run_ranks(1, [](LocalCommunicator& communicator) {
    PostLocalSgdOptions options;
    options.start_iter = -1;
    EXPECT_THROW(post_local_sgd_hook(communicator, options), UsageError);
    EXPECT_THROW(quantize_per_channel_hook(communicator, 0), UsageError);
  });
}

}  // namespace
}  // namespace lockstep::test
