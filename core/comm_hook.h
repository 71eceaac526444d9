// SPDX-License-Identifier: Apache-2.0
// What a communication hook is given and what it returns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "core/communicator.h"
#include "core/pending_tensor.h"

namespace lockstep {

// Note [Communication hooks]
// A hook replaces the all-reduce of the buckets. The reducer copies gradients into the bucket
// undivided, calls the hook when the bucket's turn has come, and takes what the hook's result
// evaluates to as the final gradients: nothing is divided afterwards (N3). Results are awaited at
// the end of backward, in bucket order, on the rank's own thread. So a hook may issue one
// collective at once, which overlaps with backward, and leave further ones to `then`.

/// The bucket a hook is called for.
struct GradBucket {
  /// In launch order, also in the first iteration of a static graph.
  std::int64_t index = 0;
  std::int64_t count = 0;  ///< number of buckets
  /// The gradients, one after the other. Shape: [sum of lengths]; real also for complex parameters
  /// (C19). Of a parameter with sparse gradients: a copy of its gradient as backward left it, so in
  /// general not coalesced (C18).
  at::Tensor buffer;
  std::vector<at::Tensor> parameters;            ///< in the order of the buffer
  std::vector<std::int64_t> offsets;             ///< in elements of the buffer
  std::vector<std::int64_t> lengths;             ///< in elements of the buffer
  std::vector<std::vector<std::int64_t>> sizes;  ///< of each parameter
  CollectiveTag tag;                             ///< for the hook's collectives

  bool is_last() const { return index + 1 == count; }
  /// One view of the buffer per parameter, of the parameter's sizes, strides and dtype.
  std::vector<at::Tensor> gradients() const;
};

/// Called once per bucket, in launch order, inside backward, without recording a graph. The result
/// must have as many elements as the buffer, in its order; another dtype is converted. It may be
/// the buffer. What the hook refers to outlives the wrapper.
using CommHook = std::function<PendingTensor(const GradBucket&)>;

}  // namespace lockstep
