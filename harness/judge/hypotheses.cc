// SPDX-License-Identifier: Apache-2.0
// Holds predictions against what was found.
#include "harness/judge/hypotheses.h"

#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "harness/snapshot.h"

namespace lockstep::harness {
namespace {

// Rounding of a handful of operations on numbers of this size.
constexpr double kRoundings = 16.0;

bool fits(const at::Tensor& predicted, const at::Tensor& found, double summands) {
  if (predicted.numel() == 0) {
    return false;
  }
  const double epsilon = found.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                            : std::numeric_limits<float>::epsilon();
  const double largest = std::max(predicted.abs().max().item<double>(), summands);
  const double error =
      (predicted.to(at::kDouble) - found.to(at::kDouble)).abs().max().item<double>();
  return error <= kRoundings * epsilon * largest;
}

}  // namespace

at::Tensor read(const Snapshot& snapshot, const std::string& name) {
  if (snapshot.slots != nullptr) {
    for (const TensorSlot& slot : *snapshot.slots) {
      if (slot.name == name) {
        return plain(tensor_of(snapshot, slot));
      }
    }
  }
  return {};
}

Hypotheses::Hypotheses(at::Tensor expected, at::Tensor actual)
    : expected_(std::move(expected)), actual_(std::move(actual)) {}

void Hypotheses::test(const std::string& name, const std::string& description,
                      const at::Tensor& predicted, double summands) {
  if (!predicted.defined() || !actual_.defined() || predicted.sizes() != actual_.sizes() ||
      !predicted.isfinite().all().item<bool>() ||
      (expected_.defined() && fits(predicted, expected_, summands))) {
    return;
  }
  const at::Tensor same_dtype = predicted.to(actual_.scalar_type());
  if (same_dtype.equal(actual_)) {
    list_.push_back({name, description, true});
  } else if (fits(same_dtype, actual_, summands)) {
    list_.push_back({name, description, false});
  }
}

std::vector<CauseHypothesis> Hypotheses::take() {
  std::stable_sort(list_.begin(), list_.end(),
                   [](const auto& a, const auto& b) { return a.exact && !b.exact; });
  return std::move(list_);
}

}  // namespace lockstep::harness
