// SPDX-License-Identifier: Apache-2.0
// Assignment of tensors to buckets.
#include "core/bucket_plan.h"

#include <cstddef>
#include <map>
#include <utility>

#include "core/check.h"

namespace lockstep {
namespace {

using Key = std::pair<at::ScalarType, std::pair<at::DeviceType, at::DeviceIndex>>;

Key key_of(const at::Tensor& tensor) {
  return {tensor.scalar_type(), {tensor.device().type(), tensor.device().index()}};
}

/// Each dtype and device is a group. Errors: UsageError for a sparse tensor.
std::vector<BucketItem> items_of(const std::vector<at::Tensor>& tensors,
                                 const SparseFlags& sparse) {
  LOCKSTEP_USAGE(sparse.empty() || sparse.size() == tensors.size(), "{} flags for {} tensors",
                 sparse.size(), tensors.size());
  std::map<Key, std::int64_t> groups;
  std::vector<BucketItem> items;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    LOCKSTEP_USAGE(tensor.layout() == at::kStrided, "tensor {} is sparse: no bucket can hold it",
                   i);
    const auto next = static_cast<std::int64_t>(groups.size());
    items.push_back({tensor.numel() * static_cast<std::int64_t>(tensor.element_size()),
                     groups.try_emplace(key_of(tensor), next).first->second,
                     !sparse.empty() && sparse[i]});
  }
  return items;
}

}  // namespace

BucketPlan assign_buckets_in_order(const std::vector<at::Tensor>& tensors,
                                   const std::vector<std::int64_t>& caps_bytes,
                                   const std::vector<std::int64_t>& order,
                                   const SparseFlags& sparse) {
  return fill_buckets(items_of(tensors, sparse), caps_bytes, order);
}

BucketPlan assign_buckets(const std::vector<at::Tensor>& tensors,
                          const std::vector<std::int64_t>& caps_bytes, const SparseFlags& sparse) {
  return fill_buckets(items_of(tensors, sparse), caps_bytes);
}

BucketPlan initial_plan(const std::vector<at::Tensor>& parameters, const BucketCaps& caps,
                        bool small_buckets, const SparseFlags& sparse) {
  return initial_plan(items_of(parameters, sparse), caps, small_buckets);
}

BucketPlan rebuilt_plan(const std::vector<at::Tensor>& parameters, const BucketCaps& caps,
                        const std::vector<std::int64_t>& ready_order, const SparseFlags& sparse) {
  return rebuilt_plan(items_of(parameters, sparse), caps, ready_order);
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
