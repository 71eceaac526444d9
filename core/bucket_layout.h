// SPDX-License-Identifier: Apache-2.0
// How buckets are filled, from sizes alone: without tensors, so that it can also be predicted.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

/// Parameter indices per bucket.
using BucketPlan = std::vector<std::vector<std::int64_t>>;

/// Soft upper bounds on buckets, in bytes. The smaller of both bounds the first bucket, so that
/// lowering `other_bytes` alone lowers both (C14).
struct BucketCaps {
  std::int64_t first_bytes = 1 << 20;
  std::int64_t other_bytes = 25 << 20;
};

/// What a plan needs to know of a tensor.
struct BucketItem {
  std::int64_t bytes = 0;
  std::int64_t group = 0;  ///< tensors of different groups (dtype and device) share no bucket
  bool alone = false;      ///< a bucket of its own that counts for no cap: sparse gradients
};

// Note [How buckets are filled]
// Each group has one open bucket. A tensor is added to it first; the bucket is closed when its
// bytes then reach the cap in force for that group: caps_bytes[0] for its first bucket,
// caps_bytes[1] for its second, and so on, the last cap for all others (C2, C3). So a bucket may
// exceed its cap by almost one tensor, and no tensor is ever split. What is open at the end is
// closed then, group by group, in the order of their last tensors (C5). A tensor with sparse
// gradients is a bucket at once and counts for no cap (C4).

/// Fills buckets with `items` in `order` (a permutation of their indices); buckets come in the
/// order in which they were closed, and indices inside a bucket in the order of addition (C6, C7).
///
/// Order:  depends on the arguments alone, so ranks that agree on them agree.
/// Errors: UsageError if there is no cap, if one is not positive, or if the order has another
///         length.
BucketPlan fill_buckets(const std::vector<BucketItem>& items,
                        const std::vector<std::int64_t>& caps_bytes,
                        const std::vector<std::int64_t>& order);

/// The same in declaration order, buckets ordered by their smallest index (C6).
BucketPlan fill_buckets(const std::vector<BucketItem>& items,
                        const std::vector<std::int64_t>& caps_bytes);

/// The plan before any gradient was seen: declaration order, last bucket first (C11). Unless
/// `small_buckets`, one bucket per group (C12).
BucketPlan initial_plan(const std::vector<BucketItem>& items, const BucketCaps& caps,
                        bool small_buckets);

/// The plan after gradients became ready in `ready_order` (D4).
BucketPlan rebuilt_plan(const std::vector<BucketItem>& items, const BucketCaps& caps,
                        const std::vector<std::int64_t>& ready_order);

}  // namespace lockstep
