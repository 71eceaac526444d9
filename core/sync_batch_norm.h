// SPDX-License-Identifier: Apache-2.0
// Batch normalisation whose statistics are those of all ranks' batches together.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"

namespace lockstep {

/// Normalises each channel over the batches of all ranks, as BatchNorm on their concatenation does.
///
/// In training, forward issues one all-gather of every rank's count, mean and sum of squared
/// deviations per channel (double, [2C + 1]); backward issues one all-reduce of two sums per
/// channel (double, [2C]), unless the input needs no gradient. So all ranks must run the same
/// layers in the same order, and inputs must require grad on all ranks or on none. Where DDP's
/// buckets may interleave differently on different ranks, give the layers a communicator of their
/// own. Evaluation, and a world of one rank, issue nothing and are exactly BatchNorm.
///
/// Statistics are accumulated in double whatever the dtype. Running statistics are updated as
/// BatchNorm does, with the unbiased variance of the whole batch. Local batches may differ in size
/// and be empty; if all are, the result is empty too, gradients are zero and running statistics
/// stay. Gradients of weight and bias are those of the local batch: averaging them is DDP's work.
///
/// Shapes: input [N, C, ...], N >= 0; the output has its shape, dtype and memory format.
/// Errors: UsageError for a wrong number of channels, or, on every rank, for one value per channel
///         in total; DdpError `create_graph` from a backward that shall itself be differentiated;
///         CommError. After an error nothing has been updated.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  /// Undefined: weight and bias without `affine`, the others without `track_running_stats`.
  struct Tensors {
    at::Tensor weight, bias;                                    ///< parameters, [C]
    at::Tensor running_mean, running_var, num_batches_tracked;  ///< buffers, [C], [C] and []
  };

  /// `communicator` outlives this module and every graph it takes part in.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_in, Communicator& communicator);
  /// Takes `tensors` as they are instead of making new ones.
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_in, Communicator& communicator,
                    const Tensors& tensors);

  at::Tensor forward(const at::Tensor& input);
  void reset() override;

  torch::nn::BatchNormOptions options;
  Tensors tensors;

 private:
  void adopt(const Tensors& given);
  at::Tensor synchronized(const at::Tensor& input);
  double next_average_factor();

  Communicator* communicator_;
};
TORCH_MODULE(SyncBatchNorm);

/// A SyncBatchNorm with the options, mode, parameters and buffers of `batch_norm`: the same
/// tensors, not copies. Null if `batch_norm` is not a BatchNorm1d, 2d or 3d.
SyncBatchNorm sync_batch_norm_from(const torch::nn::Module& batch_norm, Communicator& communicator);

/// Puts `sync_batch_norm_from` in the place of every BatchNorm1d, 2d and 3d inside `module`.
/// Call it before the optimizer and DDP are made. Returns the names of what was replaced.
///
/// Only a torch::nn::Sequential can be given other children: other modules keep theirs in members
/// of a fixed type, which nothing outside can redirect.
/// Errors: UsageError, before any effect, for a BatchNorm whose parent is not a Sequential.
std::vector<std::string> convert_sync_batch_norm(torch::nn::Module& module,
                                                 Communicator& communicator);

}  // namespace lockstep
