// SPDX-License-Identifier: Apache-2.0
// Explanations of one diverging tensor, kept where their prediction is what was found.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "harness/outcome.h"
#include "harness/run.h"

namespace lockstep::harness {

/// The tensor `name` of a snapshot, plain(); undefined if there is none.
at::Tensor read(const Snapshot& snapshot, const std::string& name);

/// What was expected, what was found, and the mistakes that lead from the one to the other.
class Hypotheses {
 public:
  Hypotheses(at::Tensor expected, at::Tensor actual);

  /// Keeps the hypothesis if `predicted` is what was found, up to rounding, and not what was
  /// expected. A sum is rounded by what was added up, which may be much larger: its largest number
  /// is `summands`.
  void test(const std::string& name, const std::string& description, const at::Tensor& predicted,
            double summands = 0.0);

  void offer(CauseHypothesis hypothesis) { list_.push_back(std::move(hypothesis)); }

  /// Exact ones first.
  std::vector<CauseHypothesis> take();

  const at::Tensor& expected() const { return expected_; }
  const at::Tensor& actual() const { return actual_; }
  bool empty() const { return list_.empty(); }

 private:
  at::Tensor expected_, actual_;
  std::vector<CauseHypothesis> list_;
};

}  // namespace lockstep::harness
