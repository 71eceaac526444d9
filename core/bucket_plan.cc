// SPDX-License-Identifier: Apache-2.0
// Assignment of tensors to buckets.
#include "core/bucket_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "core/check.h"

namespace lockstep {
namespace {

using Key = std::pair<at::ScalarType, std::pair<at::DeviceType, at::DeviceIndex>>;

Key key_of(const at::Tensor& tensor) {
  return {tensor.scalar_type(), {tensor.device().type(), tensor.device().index()}};
}

struct OpenBucket {
  std::vector<std::int64_t> indices;
  std::int64_t bytes = 0;
  std::size_t num_closed = 0;     // buckets of this key that were closed before
  std::size_t last_position = 0;  // of the tensor added last
};

std::vector<std::int64_t> limits(const BucketCaps& caps) {
  return {std::min(caps.first_bytes, caps.other_bytes), caps.other_bytes};
}

}  // namespace

BucketPlan assign_buckets_in_order(const std::vector<at::Tensor>& tensors,
                                   const std::vector<std::int64_t>& caps_bytes,
                                   const std::vector<std::int64_t>& order,
                                   const SparseFlags& sparse) {
  LOCKSTEP_USAGE(!caps_bytes.empty(), "buckets need at least one cap");
  for (const std::int64_t cap_bytes : caps_bytes) {
    LOCKSTEP_USAGE(cap_bytes > 0, "a bucket cap is {} bytes, but must be positive", cap_bytes);
  }
  LOCKSTEP_USAGE(order.size() == tensors.size(), "an order of {} for {} tensors", order.size(),
                 tensors.size());
  LOCKSTEP_USAGE(sparse.empty() || sparse.size() == tensors.size(), "{} flags for {} tensors",
                 sparse.size(), tensors.size());
  BucketPlan plan;
  std::map<Key, OpenBucket> open_buckets;
  for (std::size_t position = 0; position < order.size(); ++position) {
    const at::Tensor& tensor = tensors.at(static_cast<std::size_t>(order[position]));
    LOCKSTEP_USAGE(tensor.layout() == at::kStrided, "tensor {} is sparse: no bucket can hold it",
                   order[position]);
    if (!sparse.empty() && sparse[static_cast<std::size_t>(order[position])]) {
      plan.push_back({order[position]});
      continue;
    }
    OpenBucket& open = open_buckets[key_of(tensor)];
    open.indices.push_back(order[position]);
    open.bytes += tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
    open.last_position = position;
    if (open.bytes >= caps_bytes[std::min(open.num_closed, caps_bytes.size() - 1)]) {
      plan.push_back(std::move(open.indices));
      open.indices.clear();
      open.bytes = 0;
      ++open.num_closed;
    }
  }
  std::vector<OpenBucket*> left;
  for (auto& [key, open] : open_buckets) {
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

BucketPlan assign_buckets(const std::vector<at::Tensor>& tensors,
                          const std::vector<std::int64_t>& caps_bytes, const SparseFlags& sparse) {
  std::vector<std::int64_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  BucketPlan plan = assign_buckets_in_order(tensors, caps_bytes, order, sparse);
  std::sort(plan.begin(), plan.end(), [](const auto& a, const auto& b) { return a[0] < b[0]; });
  return plan;
}

BucketPlan initial_plan(const std::vector<at::Tensor>& parameters, const BucketCaps& caps,
                        bool small_buckets, const SparseFlags& sparse) {
  BucketPlan plan = assign_buckets(
      parameters,
      small_buckets ? limits(caps)
                    : std::vector<std::int64_t>{std::numeric_limits<std::int64_t>::max()},
      sparse);
  std::reverse(plan.begin(), plan.end());
  return plan;
}

BucketPlan rebuilt_plan(const std::vector<at::Tensor>& parameters, const BucketCaps& caps,
                        const std::vector<std::int64_t>& ready_order, const SparseFlags& sparse) {
  return assign_buckets_in_order(parameters, limits(caps), ready_order, sparse);
}

bool is_partition(const BucketPlan& plan, std::int64_t num_parameters) {
  std::vector<bool> seen(static_cast<std::size_t>(num_parameters), false);
  std::int64_t count = 0;
  for (const auto& bucket : plan) {
    if (bucket.empty()) {
      return false;
    }
    for (const std::int64_t index : bucket) {
      if (index < 0 || index >= num_parameters || seen[static_cast<std::size_t>(index)]) {
        return false;
      }
      seen[static_cast<std::size_t>(index)] = true;
      ++count;
    }
  }
  return count == num_parameters;
}

}  // namespace lockstep
