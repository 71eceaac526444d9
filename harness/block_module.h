// SPDX-License-Identifier: Apache-2.0
// The LibTorch module of one block.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>

#include "harness/block_spec.h"

namespace lockstep::harness {

/// Computes what LibTorch's own module of the same kind does, with the same parameter and buffer
/// names in the same order. Unlike those, it starts without parameters, so that initial values come
/// from elsewhere and LibTorch's generator is not touched, and a parameter can be replaced.
class BlockModule : public torch::nn::Module {
 public:
  /// Registers the block's buffers; the parameters are left to set_parameter().
  BlockModule(const BlockSpec& spec, at::ScalarType dtype);

  /// Registers `value` as parameter `local` ("weight" | "bias"), or puts it in its place.
  void set_parameter(const std::string& local, const at::Tensor& value);

  /// Errors: UsageError where batch statistics of a single value are asked for.
  at::Tensor forward(const at::Tensor& input);

  const BlockSpec& spec() const { return spec_; }

 private:
  at::Tensor batch_norm(const at::Tensor& input);

  BlockSpec spec_;
  at::Tensor weight_;
  at::Tensor bias_;
  at::Tensor running_mean_;
  at::Tensor running_var_;
  at::Tensor num_batches_tracked_;
};

/// Initial values of parameter `local` of a block, drawn from the stream of initial values.
///
/// As LibTorch's modules do: linear and conv2d uniform within 1/sqrt(inputs of one output),
/// embedding normal, norms and scale one, their biases zero. `exact`: linear, conv2d and embedding
/// draw_exact_unit() instead.
/// Order: values are drawn in double, in memory order, and then rounded to `dtype`; the draws
///        depend on (seed, init_rank, index) alone, where `index` is the parameter's number.
struct InitialValues {
  std::uint64_t seed = 1;
  std::int64_t init_rank = 0;
  std::int64_t index = 0;
  bool exact = false;
};
at::Tensor draw_parameter(const BlockSpec& spec, const TensorSpec& parameter, at::ScalarType dtype,
                          const InitialValues& initial);

}  // namespace lockstep::harness
