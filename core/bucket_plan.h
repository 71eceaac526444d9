// SPDX-License-Identifier: Apache-2.0
// Which parameters share a bucket, and in which order buckets are reduced.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/bucket_layout.h"

namespace lockstep {

/// Which tensors are to have a bucket of their own, because their gradients are sparse; empty:
/// none.
using SparseFlags = std::vector<bool>;

/// Fills buckets with `tensors` in declaration order, and orders the buckets by their smallest
/// index (C6); see Note [How buckets are filled]. Also used to coalesce broadcasts.
///
/// Shapes: every index of `tensors` appears exactly once; tensors without elements count 0 bytes
///         (C10). No tensors give no buckets.
/// Order:  depends on dtypes, devices, numels and caps alone, so ranks that agree on them agree.
/// Errors: UsageError if there is no cap, if one is not positive, or for a sparse tensor.
BucketPlan assign_buckets(const std::vector<at::Tensor>& tensors,
                          const std::vector<std::int64_t>& caps_bytes,
                          const SparseFlags& sparse = {});

/// The same, taking tensors in `order` (a permutation of their indices); buckets come in the order
/// in which they were closed, and indices inside a bucket in the order of addition (C6, C7).
BucketPlan assign_buckets_in_order(const std::vector<at::Tensor>& tensors,
                                   const std::vector<std::int64_t>& caps_bytes,
                                   const std::vector<std::int64_t>& order,
                                   const SparseFlags& sparse = {});

/// The plan before any gradient was seen: declaration order, last bucket first (C11). Unless
/// `small_buckets`, one bucket per dtype and device (C12).
BucketPlan initial_plan(const std::vector<at::Tensor>& parameters, const BucketCaps& caps,
                        bool small_buckets, const SparseFlags& sparse = {});

/// The plan after gradients became ready in `ready_order` (D4).
BucketPlan rebuilt_plan(const std::vector<at::Tensor>& parameters, const BucketCaps& caps,
                        const std::vector<std::int64_t>& ready_order,
                        const SparseFlags& sparse = {});

/// True if each of 0 .. `num_parameters`-1 is in exactly one bucket and no bucket is empty.
bool is_partition(const BucketPlan& plan, std::int64_t num_parameters);

}  // namespace lockstep
