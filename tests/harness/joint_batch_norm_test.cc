// SPDX-License-Identifier: Apache-2.0
// Batch normalisation of several replicas at once is batch normalisation of the whole batch.
#include "harness/joint_batch_norm.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <vector>

#include "core/error.h"
#include "core/sync_batch_norm.h"
#include "tests/support/local_communicator.h"
#include "tests/support/run_ranks.h"

namespace lockstep::harness {
namespace {

NormTensors norm_tensors(std::int64_t channels, at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  return {(at::arange(channels, options) + 1).requires_grad_(),
          at::full({channels}, 0.5, options).requires_grad_(), at::zeros({channels}, options),
          at::ones({channels}, options), at::zeros({}, at::kLong)};
}

// Three replicas' inputs of 3, 1 and 2 samples, [n, 2, 2], the same in every test.
std::vector<at::Tensor> inputs_of(at::ScalarType dtype) {
  const at::Tensor whole = at::sin(at::arange(24, at::kDouble)).view({6, 2, 2}).to(dtype);
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& piece : whole.split_with_sizes({3, 1, 2})) {
    inputs.push_back(piece.clone().requires_grad_());
  }
  return inputs;
}

// Some loss that weighs every element differently.
at::Tensor loss_of(const std::vector<at::Tensor>& outputs) {
  const at::Tensor whole = at::cat(outputs);
  return (whole * at::cos(at::arange(whole.numel(), whole.options())).view(whole.sizes())).sum();
}

TEST(JointBatchNormTest, EqualsBatchNormOfTheWholeBatch) {
  const std::vector<at::Tensor> inputs = inputs_of(at::kDouble);
  std::vector<NormTensors> replicas(3);
  for (NormTensors& replica : replicas) {
    replica = norm_tensors(2, at::kDouble);
  }
  const std::vector<at::Tensor> outputs = joint_batch_norm(inputs, replicas);
  loss_of(outputs).backward();

  const at::Tensor whole = at::cat(inputs).detach().requires_grad_();
  const NormTensors expected = norm_tensors(2, at::kDouble);
  const at::Tensor output =
      at::batch_norm(whole, expected.weight, expected.bias, expected.running_mean,
                     expected.running_var, true, kBatchNormMomentum, kNormEps, false);
  loss_of({output}).backward();
  EXPECT_TRUE(at::allclose(at::cat(outputs), output, 1e-12, 1e-12));
  at::Tensor weight_gradient = at::zeros({2}, at::kDouble);
  std::vector<at::Tensor> gradients;
  for (std::size_t r = 0; r < 3; ++r) {
    gradients.push_back(inputs[r].grad());
    weight_gradient += replicas[r].weight.grad();
    EXPECT_TRUE(at::allclose(replicas[r].running_var, expected.running_var, 1e-12, 1e-12));
    EXPECT_TRUE(at::allclose(replicas[r].running_mean, expected.running_mean, 1e-12, 1e-12));
    EXPECT_EQ(replicas[r].num_batches_tracked.item<std::int64_t>(), 1);
  }
  EXPECT_TRUE(at::allclose(at::cat(gradients), whole.grad(), 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(weight_gradient, expected.weight.grad(), 1e-12, 1e-12));
}

TEST(JointBatchNormTest, HoldsTheBitsOfSyncBatchNorm) {
  const std::vector<at::Tensor> inputs = inputs_of(at::kFloat);
  std::vector<NormTensors> replicas(3);
  for (NormTensors& replica : replicas) {
    replica = norm_tensors(2, at::kFloat);
  }
  const std::vector<at::Tensor> outputs = joint_batch_norm(inputs, replicas);
  at::Tensor loss = outputs[0].square().sum();
  for (std::size_t r = 1; r < 3; ++r) {
    loss = loss + outputs[r].square().sum();
  }
  loss.backward();
  test::run_ranks(3, [&](test::LocalCommunicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const NormTensors own = norm_tensors(2, at::kFloat);
    SyncBatchNormImpl norm(
        torch::nn::BatchNormOptions(2).eps(kNormEps).momentum(kBatchNormMomentum), communicator,
        {own.weight, own.bias, own.running_mean, own.running_var, own.num_batches_tracked});
    const at::Tensor input = inputs_of(at::kFloat)[rank];
    const at::Tensor output = norm.forward(input);
    output.square().sum().backward();
    EXPECT_TRUE(output.equal(outputs[rank]));
    EXPECT_TRUE(input.grad().equal(inputs[rank].grad()));
    EXPECT_TRUE(own.weight.grad().equal(replicas[rank].weight.grad()));
    EXPECT_TRUE(own.running_var.equal(replicas[rank].running_var));
  });
}

TEST(JointBatchNormTest, OneReplicasInputReachesEveryOutput) {
  const auto outputs_with = [](double nudge) {
    std::vector<at::Tensor> inputs = inputs_of(at::kDouble);
    inputs[1] = inputs[1].detach() + nudge;
    std::vector<NormTensors> replicas(3);
    for (NormTensors& replica : replicas) {
      replica = norm_tensors(2, at::kDouble);
    }
    return joint_batch_norm(inputs, replicas);
  };
  const auto before = outputs_with(0.0);
  const auto after = outputs_with(0.25);
  for (std::size_t r = 0; r < 3; ++r) {
    EXPECT_FALSE(before[r].equal(after[r])) << r;
  }
}

TEST(JointBatchNormTest, RefusesASingleValuePerChannelInAll) {
  const std::vector<at::Tensor> inputs = {at::ones({1, 2}), at::ones({0, 2})};
  EXPECT_THROW(joint_batch_norm(inputs, {norm_tensors(2, at::kFloat), norm_tensors(2, at::kFloat)}),
               UsageError);
}

}  // namespace
}  // namespace lockstep::harness
