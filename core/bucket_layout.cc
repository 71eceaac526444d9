// SPDX-License-Identifier: Apache-2.0
// Assignment of sizes to buckets.
#include "core/bucket_layout.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace lockstep {
namespace {

struct OpenBucket {
  std::vector<std::int64_t> indices;
  std::int64_t bytes = 0;
  std::size_t num_closed = 0;     // buckets of this group that were closed before
  std::size_t last_position = 0;  // of the item added last
};

std::vector<std::int64_t> limits(const BucketCaps& caps) {
  return {std::min(caps.first_bytes, caps.other_bytes), caps.other_bytes};
}

}  // namespace

BucketPlan fill_buckets(const std::vector<BucketItem>& items,
                        const std::vector<std::int64_t>& caps_bytes,
                        const std::vector<std::int64_t>& order) {
  LOCKSTEP_USAGE(!caps_bytes.empty(), "buckets need at least one cap");
  for (const std::int64_t cap_bytes : caps_bytes) {
    LOCKSTEP_USAGE(cap_bytes > 0, "a bucket cap is {} bytes, but must be positive", cap_bytes);
  }
  LOCKSTEP_USAGE(order.size() == items.size(), "an order of {} for {} tensors", order.size(),
                 items.size());
  BucketPlan plan;
  std::map<std::int64_t, OpenBucket> open_buckets;
  for (std::size_t position = 0; position < order.size(); ++position) {
    const BucketItem& item = items.at(static_cast<std::size_t>(order[position]));
    if (item.alone) {
      plan.push_back({order[position]});
      continue;
    }
    OpenBucket& open = open_buckets[item.group];
    open.indices.push_back(order[position]);
    open.bytes += item.bytes;
    open.last_position = position;
    if (open.bytes >= caps_bytes[std::min(open.num_closed, caps_bytes.size() - 1)]) {
      plan.push_back(std::move(open.indices));
      open.indices.clear();
      open.bytes = 0;
      ++open.num_closed;
    }
  }
  std::vector<OpenBucket*> left;
  for (auto& [group, open] : open_buckets) {
    if (!open.indices.empty()) {
      left.push_back(&open);
    }
  }
  std::sort(left.begin(), left.end(), [](const OpenBucket* a, const OpenBucket* b) {
    return a->last_position < b->last_position;
  });
  for (OpenBucket* open : left) {
    plan.push_back(std::move(open->indices));
  }
  return plan;
}

BucketPlan fill_buckets(const std::vector<BucketItem>& items,
                        const std::vector<std::int64_t>& caps_bytes) {
  std::vector<std::int64_t> order(items.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  BucketPlan plan = fill_buckets(items, caps_bytes, order);
  std::sort(plan.begin(), plan.end(), [](const auto& a, const auto& b) { return a[0] < b[0]; });
  return plan;
}

BucketPlan initial_plan(const std::vector<BucketItem>& items, const BucketCaps& caps,
                        bool small_buckets) {
  BucketPlan plan = fill_buckets(
      items, small_buckets ? limits(caps)
                           : std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::max()});
  std::reverse(plan.begin(), plan.end());
  return plan;
}

BucketPlan rebuilt_plan(const std::vector<BucketItem>& items, const BucketCaps& caps,
                        const std::vector<std::int64_t>& ready_order) {
  return fill_buckets(items, limits(caps), ready_order);
}

}  // namespace lockstep
