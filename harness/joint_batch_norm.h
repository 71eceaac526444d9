// SPDX-License-Identifier: Apache-2.0
// What SyncBatchNorm computes, for all ranks at once and in one process.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::harness {

inline constexpr double kNormEps = 1e-5;
inline constexpr double kBatchNormMomentum = 0.1;

/// One replica's parameters and buffers: [C] each, num_batches_tracked [].
struct NormTensors {
  at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
};

/// Normalises each channel over the inputs of all replicas together, in training; worked out anew
/// from the definition, with nothing of core/sync_batch_norm.
///
/// Statistics and their gradient are taken in double; sums over replicas are in rank order forward
/// and in Gloo's order backward. Each replica's running statistics are updated.
/// Shapes: `inputs[r]` is [N_r, C, ...], N_r >= 0; `outputs[r]` is alike.
/// Errors: UsageError for one value per channel in all.
std::vector<at::Tensor> joint_batch_norm(const std::vector<at::Tensor>& inputs,
                                         const std::vector<NormTensors>& replicas);

}  // namespace lockstep::harness
