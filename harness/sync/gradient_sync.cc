// SPDX-License-Identifier: Apache-2.0
// The list of subjects, and how a model's tensors are listed.
#include "harness/sync/gradient_sync.h"

#include <algorithm>
#include <unordered_set>

#include "core/check.h"
#include "harness/sync/ddp_sync.h"
#include "harness/sync/plain_sync.h"
#ifdef LOCKSTEP_WITH_TORCH_REDUCER
#include "harness/sync/torch_sync.h"
#endif

namespace lockstep::harness {

std::unique_ptr<GradientSync> make_gradient_sync(const SyncParts& parts) {
  const std::string& sync = parts.value->ddp.sync;
  if (sync == "ddp") {
    return make_ddp_sync(parts);
  }
  if (sync == "torch") {
#ifdef LOCKSTEP_WITH_TORCH_REDUCER
    return make_torch_sync(parts);
#else
    throw InvariantError("PyTorch's reducer was not built, and the case was not refused");
#endif
  }
  return make_plain_sync(parts);
}

std::string join_of(const Case& value) {
  const std::string& meant = value.ddp.join;
  const bool other =
      std::any_of(value.faults.begin(), value.faults.end(),
                  [](const FaultSpec& fault) { return fault.kind == "join_divisor"; });
  return !other ? meant : meant == "divide_by_active" ? "divide_by_initial" : "divide_by_active";
}

std::shared_ptr<const ReductionPlan> plan_of(const BucketLayout& layout,
                                             const std::vector<std::int64_t>& trainable_index) {
  ReductionPlan plan;
  plan.buckets = layout.buckets;
  for (auto& bucket : plan.buckets) {
    for (std::int64_t& index : bucket) {
      index = trainable_index[static_cast<std::size_t>(index)];
    }
  }
  return std::make_shared<const ReductionPlan>(std::move(plan));
}

// A tensor that modules share is listed once, under its first name (A1).
NamedParameters all_parameters(const GraphModel& model) {
  NamedParameters result;
  std::unordered_set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.names.push_back(item.key());
      result.tensors.push_back(item.value());
    }
  }
  return result;
}

NamedParameters trainable_parameters(const GraphModel& model) {
  NamedParameters all = all_parameters(model);
  NamedParameters result;
  for (std::size_t i = 0; i < all.names.size(); ++i) {
    if (all.tensors[i].requires_grad()) {
      result.names.push_back(std::move(all.names[i]));
      result.tensors.push_back(std::move(all.tensors[i]));
    }
  }
  return result;
}

NamedParameters all_buffers(const GraphModel& model) {
  NamedParameters result;
  std::unordered_set<const void*> seen;
  for (const auto& item : model.named_buffers()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      result.names.push_back(item.key());
      result.tensors.push_back(item.value());
    }
  }
  return result;
}

}  // namespace lockstep::harness
