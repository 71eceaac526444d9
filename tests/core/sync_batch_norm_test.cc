// SPDX-License-Identifier: Apache-2.0
// The numbers of SyncBatchNorm against BatchNorm on the concatenated batch.
#include "core/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/core/whole_batch_norm.h"
#include "tests/support/run_ranks.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;

std::vector<NormResult> synchronized(const Batch& batch) {
  return run_ranks(batch.world_size(), [&](LocalCommunicator& communicator) {
    SyncBatchNorm norm(batch.options(), communicator);
    prepare(norm);
    const std::int64_t rank = communicator.rank();
    return differentiate(norm, batch.part(batch.whole(1.7), rank),
                         batch.part(batch.whole(0.9), rank));
  });
}

// How far two computations in double may be apart.
//
// u is the unit roundoff, n the number of values per channel plus 8 for the operations that do not
// grow with it; X, D, S, A, B bound |x|, |dy|, the inverse std, |weight| and |bias|, and
// Z = 2 X S >= 1 bounds |x_hat|. A sum of n terms adds at most n u times the sum of magnitudes, so
//   mean            n u X
//   variance        8 n u X^2                          (twice the deviation's error, plus the
//   sum's) inverse std     4 n u Z^2 S relative, from 1/2 variance S^2 x_hat           2 n u Z^3
//   output          2 n u Z^3 A + 2 u B
//   dx              9 n u Z^4 S A D                    (three terms, each a product of the above)
//   dweight         n D (2 n u Z^3 + n u Z) <= 3 n^2 u Z^3 D
//   dbias           n^2 u D
// and both computations may err, in opposite directions: twice that.
struct Bound {
  explicit Bound(const Batch& batch) {
    const at::Tensor x = batch.whole(1.7);
    n = static_cast<double>(x.numel() / kChannels + 8);
    const double magnitude = x.abs().max().item<double>();
    const at::Tensor variance = x.transpose(0, 1).reshape({kChannels, -1}).var(1, false);
    const double inverse_std = 1.0 / std::sqrt(variance.min().item<double>());
    const double z = std::max(1.0, 2.0 * magnitude * inverse_std);
    const double factor = batch.affine ? waves({kChannels}, 2.1).abs().max().item<double>() : 1.0;
    const double d = batch.whole(0.9).abs().max().item<double>();
    mean = 2 * n * u * magnitude;
    variance_error = 16 * n * u * (magnitude * magnitude + 1);
    output = 4 * n * u * (z * z * z * factor + 2);
    input_gradient = 18 * n * u * z * z * z * z * inverse_std * factor * d;
    weight_gradient = 6 * n * n * u * z * z * z * d;
    bias_gradient = 2 * n * n * u * d;
  }
  double u = std::numeric_limits<double>::epsilon() / 2;
  double n, mean, variance_error, output, input_gradient, weight_gradient, bias_gradient;
};

double distance(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_EQ(a.sizes(), b.sizes());
  EXPECT_TRUE(a.isfinite().all().item<bool>());
  return a.numel() == 0 ? 0.0 : (a - b).abs().max().item<double>();
}

void expect_whole_batch(const Batch& batch) {
  const NormResult whole = whole_batch(batch);
  const std::vector<NormResult> ranks = synchronized(batch);
  const Bound bound(batch);
  std::vector<at::Tensor> outputs, input_gradients;
  at::Tensor weight_gradient = at::zeros({kChannels}, at::kDouble);
  at::Tensor bias_gradient = at::zeros({kChannels}, at::kDouble);
  for (const NormResult& rank : ranks) {
    outputs.push_back(rank.output);
    input_gradients.push_back(rank.input_gradient);
    if (batch.affine) {
      weight_gradient += rank.weight_gradient;
      bias_gradient += rank.bias_gradient;
    }
    EXPECT_LE(distance(rank.running_mean, whole.running_mean), bound.mean);
    EXPECT_LE(distance(rank.running_var, whole.running_var), bound.variance_error);
    EXPECT_TRUE(at::equal(rank.running_var, ranks[0].running_var));
    EXPECT_EQ(rank.num_batches_tracked, 1);
    EXPECT_TRUE(rank.output.is_contiguous(batch.format));
  }
  EXPECT_LE(distance(at::cat(outputs), whole.output), bound.output);
  EXPECT_LE(distance(at::cat(input_gradients), whole.input_gradient), bound.input_gradient);
  if (batch.affine) {
    EXPECT_LE(distance(weight_gradient, whole.weight_gradient), bound.weight_gradient);
    EXPECT_LE(distance(bias_gradient, whole.bias_gradient), bound.bias_gradient);
  }
}

TEST(SyncBatchNormTest, EqualsBatchNormOnTheWholeBatchForEveryWorldSizeAndShape) {
  for (const Sizes& samples : {Sizes{6}, Sizes{4, 4}, Sizes{2, 2, 2}, Sizes{3, 3, 3, 3}}) {
    for (const Sizes& tail : {Sizes{}, Sizes{5}, Sizes{2, 3}, Sizes{2, 1, 2}}) {
      expect_whole_batch({samples, tail});
    }
  }
}

TEST(SyncBatchNormTest, LocalBatchesMayDifferInSizeAndBeEmpty) {
  for (const Sizes& samples : {Sizes{1, 1}, Sizes{1, 5}, Sizes{0, 4}, Sizes{3, 0, 2},
                               Sizes{0, 0, 7, 0}, Sizes{1, 2, 3, 4}}) {
    expect_whole_batch({samples, {}});
    expect_whole_batch({samples, {3, 2}});
  }
}

TEST(SyncBatchNormTest, WorksWithoutAffineParametersAndKeepsChannelsLast) {
  expect_whole_batch({{2, 3}, {2, 2}, false});
  expect_whole_batch({{2, 3}, {2, 2}, true, at::MemoryFormat::ChannelsLast});
  expect_whole_batch({{0, 3}, {2, 2}, true, at::MemoryFormat::ChannelsLast});
}

// The bound tells whole-batch statistics from local ones.
TEST(SyncBatchNormTest, LocalStatisticsWouldMissTheBound) {
  const Batch batch{{4, 4}, {}};
  const NormResult whole = whole_batch(batch);
  WholeBatchNorm norm(batch.options());
  prepare(norm);
  const NormResult local =
      differentiate(norm, batch.part(batch.whole(1.7), 0), batch.part(batch.whole(0.9), 0));
  const Bound bound(batch);
  EXPECT_GT(distance(local.output, batch.part(whole.output, 0)), 1e6 * bound.output);
  EXPECT_GT(distance(local.input_gradient, batch.part(whole.input_gradient, 0)),
            1e6 * bound.input_gradient);
  EXPECT_GT(distance(local.running_mean, whole.running_mean), 1e6 * bound.mean);
  EXPECT_GT(distance(local.running_var, whole.running_var), 1e6 * bound.variance_error);
}

TEST(SyncBatchNormTest, IsExactWhereEveryIntermediateIsExact) {
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const at::Tensor x = signs().to(dtype);
    const at::Tensor factors = at::arange(16, dtype).view({8, 2}) / 4;
    torch::nn::BatchNorm1d whole_norm(dyadic());
    whole_norm->to(dtype);
    const NormResult whole = differentiate(whole_norm, x, factors);
    const Sizes firsts{0, 4, 6, 8};
    const auto ranks = run_ranks(4, [&](LocalCommunicator& communicator) {
      SyncBatchNorm norm(dyadic(), communicator);
      norm->to(dtype);
      const std::int64_t first = firsts[static_cast<std::size_t>(communicator.rank())];
      const std::int64_t last =
          communicator.rank() < 3 ? firsts[static_cast<std::size_t>(communicator.rank() + 1)] : 8;
      return differentiate(norm, x.slice(0, first, last), factors.slice(0, first, last));
    });
    std::vector<at::Tensor> outputs, input_gradients;
    at::Tensor weight_gradient = at::zeros({2}, dtype);
    for (const NormResult& rank : ranks) {
      outputs.push_back(rank.output);
      input_gradients.push_back(rank.input_gradient);
      weight_gradient += rank.weight_gradient;
      EXPECT_TRUE(at::equal(rank.running_mean, at::zeros({2}, dtype)));
      EXPECT_TRUE(at::equal(rank.running_var,
                            at::full({2}, 0.5 * 1.0 + 0.5 * (8.0 / 7.0), at::kDouble).to(dtype)));
    }
    EXPECT_TRUE(at::equal(at::cat(outputs), whole.output));
    EXPECT_TRUE(at::equal(at::cat(outputs), x / 2));
    EXPECT_TRUE(at::equal(at::cat(input_gradients), whole.input_gradient));
    EXPECT_TRUE(at::equal(weight_gradient, whole.weight_gradient));
  }
}

// A mean of 2^30 with a variance of 1/4 leaves nothing of sum(x^2) - n mean^2 in double.
TEST(SyncBatchNormTest, TheVarianceDoesNotCancelWhenTheMeanIsLarge) {
  const double large = 1 << 30;
  const auto running = run_ranks(2, [&](LocalCommunicator& communicator) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(1).momentum(1.0), communicator);
    norm->to(at::kDouble);
    norm->forward(at::tensor({large, large + 1}, at::kDouble).view({2, 1}));
    return norm->tensors.running_var.item<double>();
  });
  EXPECT_THAT(running, ElementsAre(1.0 / 3, 1.0 / 3));
}

TEST(SyncBatchNormTest, WithoutMomentumRunningStatisticsAreTheMeanOfAllBatches) {
  const auto running = run_ranks(2, [](LocalCommunicator& communicator) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(1).momentum(c10::nullopt), communicator);
    // Means 1, 2 and 6 over both ranks; the last batch is empty on rank 1.
    for (const auto& [zero, one] : std::vector<std::pair<std::vector<float>, std::vector<float>>>{
             {{0, 1}, {2, 1}}, {{1, 1}, {3, 3}}, {{4, 8}, {}}}) {
      const auto& mine = communicator.rank() == 0 ? zero : one;
      norm->forward(at::tensor(mine, at::kFloat).view({-1, 1}));
    }
    return norm->tensors.running_mean.item<double>();
  });
  // With the factor 1/k at batch k.
  const auto expected =
      static_cast<double>(static_cast<float>(1.5 * (1.0 - 1.0 / 3) + 6 * (1.0 / 3)));
  EXPECT_THAT(running, ElementsAre(expected, expected));
}

TEST(SyncBatchNormTest, BatchesThatAreEmptyOnAllRanksChangeNothingAndHaveNoNaN) {
  const auto ranks = run_ranks(2, [](LocalCommunicator& communicator) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(kChannels), communicator);
    return differentiate(norm, at::empty({0, kChannels, 2}), at::empty({0, kChannels, 2}));
  });
  for (const NormResult& rank : ranks) {
    EXPECT_EQ(rank.output.sizes(), at::IntArrayRef({0, kChannels, 2}));
    EXPECT_EQ(rank.input_gradient.numel(), 0);
    EXPECT_TRUE(at::equal(rank.weight_gradient, at::zeros({kChannels})));
    EXPECT_TRUE(at::equal(rank.bias_gradient, at::zeros({kChannels})));
    EXPECT_TRUE(at::equal(rank.running_mean, at::zeros({kChannels})));
    EXPECT_TRUE(at::equal(rank.running_var, at::ones({kChannels})));
    EXPECT_EQ(rank.num_batches_tracked, 1);
  }
}

}  // namespace
}  // namespace lockstep::test
