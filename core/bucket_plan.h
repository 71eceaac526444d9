// SPDX-License-Identifier: Apache-2.0
// Which parameters share a bucket, and in which order buckets are reduced.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep {

/// Which tensors are to have a bucket of their own, because their gradients are sparse; empty:
/// none.
using SparseFlags = std::vector<bool>;

/// Parameter indices per bucket.
using BucketPlan = std::vector<std::vector<std::int64_t>>;

/// Soft upper bounds on buckets, in bytes. The smaller of both bounds the first bucket, so that
/// lowering `other_bytes` alone lowers both (C14).
struct BucketCaps {
  std::int64_t first_bytes = 1 << 20;
  std::int64_t other_bytes = 25 << 20;
};

// Note [How buckets are filled]
// Each (dtype, device) has one open bucket. A tensor is added to it first; the bucket is closed
// when its bytes then reach the cap in force for that (dtype, device): caps_bytes[0] for its first
// bucket, caps_bytes[1] for its second, and so on, the last cap for all others (C2, C3). So a
// bucket may exceed its cap by almost one tensor, and no tensor is ever split. What is open at the
// end is closed then, (dtype, device) by (dtype, device), in the order of their last tensors (C5).
// A tensor with sparse gradients is a bucket at once and counts for no cap (C4).

/// Fills buckets with `tensors` in declaration order, and orders the buckets by their smallest
/// index (C6). Also used to coalesce broadcasts.
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
