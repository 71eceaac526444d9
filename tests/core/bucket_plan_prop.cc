// SPDX-License-Identifier: Apache-2.0
// What holds of every bucket plan.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <torch/types.h>

#include <numeric>

#include "core/bucket_plan.h"

namespace lockstep::test {
namespace {

struct Inputs {
  std::vector<at::Tensor> tensors;
  std::vector<std::int64_t> caps;
  std::vector<std::int64_t> order;
};

Inputs any_inputs() {
  Inputs inputs;
  const auto numels =
      *rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(0, 50));
  for (const std::int64_t numel : numels) {
    const auto dtype = *rc::gen::element(at::kFloat, at::kDouble, at::kHalf);
    inputs.tensors.push_back(at::empty({numel}, dtype));
  }
  inputs.caps = *rc::gen::nonEmpty(
      rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(1, 400)));
  std::vector<std::int64_t> declared(inputs.tensors.size());
  std::iota(declared.begin(), declared.end(), std::int64_t{0});
  std::uint64_t state = *rc::gen::arbitrary<std::uint64_t>();
  inputs.order = declared;
  for (std::size_t left = declared.size(); left > 1; --left) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::swap(inputs.order[left - 1], inputs.order[(state >> 33) % left]);
  }
  return inputs;
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
}

RC_GTEST_PROP(BucketPlanProps, EveryTensorIsInExactlyOneBucket, ()) {
  const Inputs inputs = any_inputs();
  const auto count = static_cast<std::int64_t>(inputs.tensors.size());
  RC_ASSERT(is_partition(assign_buckets(inputs.tensors, inputs.caps), count));
  RC_ASSERT(
      is_partition(assign_buckets_in_order(inputs.tensors, inputs.caps, inputs.order), count));
}

RC_GTEST_PROP(BucketPlanProps, ABucketHasOneDtypeAndKeepsTheOrderOfAddition, ()) {
  const Inputs inputs = any_inputs();
  std::vector<std::size_t> position(inputs.order.size());
  for (std::size_t i = 0; i < inputs.order.size(); ++i) {
    position[static_cast<std::size_t>(inputs.order[i])] = i;
  }
  for (const auto& bucket : assign_buckets_in_order(inputs.tensors, inputs.caps, inputs.order)) {
    for (std::size_t i = 1; i < bucket.size(); ++i) {
      const auto before = static_cast<std::size_t>(bucket[i - 1]);
      const auto after = static_cast<std::size_t>(bucket[i]);
      RC_ASSERT(inputs.tensors[before].scalar_type() == inputs.tensors[after].scalar_type());
      RC_ASSERT(position[before] < position[after]);
    }
  }
}

// A bucket without its last tensor is below its cap; all but the last of a dtype reach it.
RC_GTEST_PROP(BucketPlanProps, ABucketIsClosedByTheTensorThatReachesTheCap, ()) {
  const Inputs inputs = any_inputs();
  std::map<at::ScalarType, std::vector<std::vector<std::int64_t>>> by_dtype;
  for (const auto& bucket : assign_buckets(inputs.tensors, inputs.caps)) {
    by_dtype[inputs.tensors[static_cast<std::size_t>(bucket[0])].scalar_type()].push_back(bucket);
  }
  for (const auto& [dtype, buckets] : by_dtype) {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      const std::int64_t cap = inputs.caps[std::min(b, inputs.caps.size() - 1)];
      std::int64_t total = 0;
      for (const std::int64_t index : buckets[b]) {
        total += bytes_of(inputs.tensors[static_cast<std::size_t>(index)]);
      }
      const std::int64_t last =
          bytes_of(inputs.tensors[static_cast<std::size_t>(buckets[b].back())]);
      RC_ASSERT(total - last < cap);
      RC_ASSERT(b + 1 == buckets.size() || total >= cap);
    }
  }
}

RC_GTEST_PROP(BucketPlanProps, DeclaredOrderIsSortedBySmallestIndex, ()) {
  const Inputs inputs = any_inputs();
  const BucketPlan plan = assign_buckets(inputs.tensors, inputs.caps);
  for (std::size_t b = 1; b < plan.size(); ++b) {
    RC_ASSERT(plan[b - 1].front() < plan[b].front());
  }
}

}  // namespace
}  // namespace lockstep::test
