// SPDX-License-Identifier: Apache-2.0
// The LibTorch module of one block.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/communicator.h"
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

  /// From now on a sync_batch_norm takes its statistics from all ranks of `communicator`, which
  /// outlives the block and every graph it takes part in, and an all_to_all exchanges with them.
  /// Without one they are batch_norm and identity.
  void set_communicator(Communicator& communicator) { communicator_ = &communicator; }

  /// Errors: UsageError where batch statistics of a single value are asked for, and where a
  /// re-entrant checkpoint gets an input that needs no gradient.
  at::Tensor forward(const at::Tensor& input);

  /// Forward of the same block of several replicas, each on its own input: a sync_batch_norm in
  /// training normalises over all of them, an all_to_all exchanges between them, and for any other
  /// kind it is forward one by one.
  static std::vector<at::Tensor> forward_together(const std::vector<BlockModule*>& replicas,
                                                  const std::vector<at::Tensor>& inputs);

  const BlockSpec& spec() const { return spec_; }

 private:
  at::Tensor compute(const at::Tensor& input);
  at::Tensor batch_norm(const at::Tensor& input);
  at::Tensor sync_batch_norm(const at::Tensor& input);

  BlockSpec spec_;
  Communicator* communicator_ = nullptr;  // outlives this: see set_communicator
  at::Tensor weight_;
  at::Tensor bias_;
  at::Tensor factor_;
  at::Tensor running_mean_;
  at::Tensor running_var_;
  at::Tensor num_batches_tracked_;
};

/// What a block's parameters are of, in a model of `dtype`.
at::ScalarType parameter_dtype(const BlockSpec& spec, at::ScalarType dtype);

/// Initial values of parameter `local` of a block, drawn from the stream of initial values.
///
/// As LibTorch's modules do: linear and conv2d uniform within 1/sqrt(inputs of one output),
/// embedding normal, norms and scale one, their biases zero. `exact`: linear, conv2d and embedding
/// draw_exact_unit() instead.
/// Order: values are drawn in double, in memory order, and then rounded to `dtype`, complex
///        numbers part by part; the draws
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
