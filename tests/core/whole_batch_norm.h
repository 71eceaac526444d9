// SPDX-License-Identifier: Apache-2.0
// A batch divided among ranks, and BatchNorm on the whole of it as the oracle.
#pragma once

#include <torch/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/types.h>

#include <functional>
#include <numeric>
#include <vector>

namespace lockstep::test {

using Sizes = std::vector<std::int64_t>;

constexpr std::int64_t kChannels = 3;

// Values without structure, the same everywhere.
inline at::Tensor waves(const Sizes& sizes, double frequency) {
  const std::int64_t numel =
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  return at::sin(at::arange(numel, at::kDouble) * frequency + 0.3).view(sizes) + 0.25;
}

// A whole batch and how many of its samples each rank has.
struct Batch {
  Sizes samples;
  Sizes tail;  // dimensions after the channels
  bool affine = true;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;

  at::Tensor whole(double frequency) const {
    Sizes sizes{std::accumulate(samples.begin(), samples.end(), std::int64_t{0}), kChannels};
    sizes.insert(sizes.end(), tail.begin(), tail.end());
    return waves(sizes, frequency).contiguous(format);
  }
  at::Tensor part(const at::Tensor& tensor, std::int64_t rank) const {
    const auto first = std::accumulate(samples.begin(), samples.begin() + rank, std::int64_t{0});
    return tensor.narrow(0, first, samples[static_cast<std::size_t>(rank)]).clone();
  }
  std::int64_t world_size() const { return static_cast<std::int64_t>(samples.size()); }
  torch::nn::BatchNormOptions options() const {
    return torch::nn::BatchNormOptions(kChannels).affine(affine);
  }
};

struct NormResult {
  at::Tensor output, input_gradient, weight_gradient, bias_gradient, running_mean, running_var;
  std::int64_t num_batches_tracked = 0;
};

// Forward and backward with the loss sum(output * factors).
template <typename Norm>
NormResult differentiate(Norm& norm, const at::Tensor& input, const at::Tensor& factors) {
  NormResult result;
  at::Tensor leaf = input.detach().clone().requires_grad_();
  result.output = norm->forward(leaf);
  (result.output * factors).sum().backward();
  result.input_gradient = leaf.grad();
  const auto parameters = norm->named_parameters();
  if (parameters.contains("weight")) {
    result.weight_gradient = parameters["weight"].grad();
    result.bias_gradient = parameters["bias"].grad();
  }
  const auto buffers = norm->named_buffers();
  if (buffers.contains("running_mean")) {
    result.running_mean = buffers["running_mean"];
    result.running_var = buffers["running_var"];
    result.num_batches_tracked = buffers["num_batches_tracked"].template item<std::int64_t>();
  }
  return result;
}

// Weight and bias away from 1 and 0, all in double.
template <typename Norm>
void prepare(Norm& norm) {
  const at::NoGradGuard no_grad;
  norm->to(at::kDouble);
  if (norm->options.affine()) {
    norm->named_parameters()["weight"].copy_(waves({kChannels}, 2.1));
    norm->named_parameters()["bias"].copy_(waves({kChannels}, 1.1));
  }
}

// The oracle: LibTorch's own function, for inputs of any number of dimensions.
struct WholeBatchNormImpl
    : torch::nn::NormImplBase<1, WholeBatchNormImpl, torch::nn::BatchNormOptions> {
  using NormImplBase::NormImplBase;
  at::Tensor forward(const at::Tensor& input) {
    if (is_training()) {
      num_batches_tracked += 1;
    }
    return torch::batch_norm(input, weight, bias, running_mean, running_var,
                             is_training() || !running_mean.defined(), *options.momentum(),
                             options.eps(), /*cudnn_enabled=*/false);
  }
  void _check_input_dim(const at::Tensor&) override {}
};
TORCH_MODULE(WholeBatchNorm);

inline NormResult whole_batch(const Batch& batch) {
  WholeBatchNorm norm(batch.options());
  prepare(norm);
  return differentiate(norm, batch.whole(1.7), batch.whole(0.9));
}

// Eight values of +-1 with mean 0 and variance 1 per channel, eps 3: the inverse std is 1/2, all
// sums are dyadic, and every order of operations gives the same bits.
inline at::Tensor signs() {
  return at::tensor({1., 1., 1., -1., 1., 1., 1., -1., -1., -1., -1., 1., -1., 1., -1., -1.})
      .view({8, 2});
}
inline torch::nn::BatchNormOptions dyadic() {
  return torch::nn::BatchNormOptions(2).eps(3).momentum(0.5);
}

}  // namespace lockstep::test
