// SPDX-License-Identifier: Apache-2.0
// Where buckets end, worked out from the caps alone.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "harness/fuzz/properties/invariants.h"
#include "harness/fuzz/script_traits.h"
#include "harness/model_plan.h"

namespace lockstep::harness::fuzz {
namespace {

using Buckets = std::vector<std::vector<std::int64_t>>;

bool bucket_caps_applies(const Case& value) {
  return reduces_in_backward(value.ddp) && !value.launch.is_asked_for() && !has_sparse(value) &&
         !has_other_dtypes(value) && !any_event(value, [](const AtSpec& at) {
           return !at.freeze.empty() || !at.unfreeze.empty();
         });
}

/// Of each trained parameter, in index order (A1).
std::vector<std::int64_t> parameter_bytes(const Case& value) {
  const std::int64_t element_bytes = value.model.dtype == "float64" ? 8 : 4;
  const ModelPlan plan = plan_model(value.model);
  std::vector<std::int64_t> bytes;
  std::set<std::int64_t> seen;
  for (const ParameterSlot& slot : plan.slots) {
    const bool is_first_name = seen.insert(slot.tensor).second;
    if (is_first_name && !plan.frozen[static_cast<std::size_t>(slot.tensor)]) {
      bytes.push_back(numel_of(slot.sizes) * element_bytes);
    }
  }
  return bytes;
}

/// A bucket ends with the parameter that makes it as large as its cap (C2).
Buckets buckets_of(const std::vector<std::int64_t>& order, const std::vector<std::int64_t>& bytes,
                   const DdpSpec& ddp) {
  Buckets buckets;
  std::int64_t open_bytes = 0;
  bool is_open = false;
  for (const std::int64_t index : order) {
    if (!is_open) buckets.emplace_back();
    buckets.back().push_back(index);
    open_bytes += bytes[static_cast<std::size_t>(index)];
    const std::int64_t cap_bytes = buckets.size() == 1
                                       ? std::min(ddp.first_bucket_cap_bytes, ddp.bucket_cap_bytes)
                                       : ddp.bucket_cap_bytes;
    is_open = open_bytes < cap_bytes;
    if (!is_open) open_bytes = 0;
  }
  return buckets;
}

std::string bucket_caps_difference(const Case& value, const Run& subject, Executor&) {
  const std::vector<std::int64_t> bytes = parameter_bytes(value);
  std::vector<std::int64_t> registered(bytes.size());
  std::iota(registered.begin(), registered.end(), std::int64_t{0});
  const bool is_rebuilt = value.ddp.static_graph || !value.ddp.find_unused_parameters;
  for (const RankRun& rank : subject.ranks) {
    for (const StepRecord& step : rank.steps) {
      for (const auto& plan : step.plans) {
        if (plan == nullptr) continue;
        // Before it is rebuilt the plan has one bucket (C12), and without a rebuild (D1) it stays
        // that of the order of registration, last bucket first (C11).
        if (is_rebuilt && plan->buckets == Buckets{registered}) continue;
        std::vector<std::int64_t> order = registered;
        if (is_rebuilt) {
          order.clear();
          for (const auto& bucket : plan->buckets) {
            order.insert(order.end(), bucket.begin(), bucket.end());
          }
        }
        Buckets expected = buckets_of(order, bytes, value.ddp);
        if (!is_rebuilt) std::reverse(expected.begin(), expected.end());
        if (plan->buckets != expected) {
          return fmt::format("rank {}, step {}: buckets {}, where caps and order make {}",
                             rank.rank, step.step, plan->buckets, expected);
        }
      }
    }
  }
  return "";
}

}  // namespace

const Property& layout_invariant() {
  static const Property kInvariant = {
      "bucket_caps", "a bucket ends with the parameter that makes it as large as its cap (C2, C11)",
      bucket_caps_applies, bucket_caps_difference};
  return kInvariant;
}

}  // namespace lockstep::harness::fuzz
