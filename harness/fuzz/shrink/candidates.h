// SPDX-License-Identifier: Apache-2.0
// The cases that may take the place of a larger one.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/fuzz/shrink/script_size.h"

namespace lockstep::harness::fuzz {

/// A change of a case that may leave it unsound.
using Edit = std::function<void(Case&)>;

/// Collects what reductions propose, and refuses what is unsound, not smaller, or there already.
class Candidates {
 public:
  /// Precondition: check_case(value) finds nothing.
  explicit Candidates(const Case& value);

  /// The case that is to become smaller.
  const Case& value() const { return value_; }

  /// Gives `candidate` its expectation. False: it is refused.
  bool add(Case candidate);
  /// The case with one change.
  bool add(const Edit& edit);
  /// With all of these changes, with halves of them, quarters, down to single ones. Of several that
  /// do not go together those are made that do.
  void add_chunks(const std::vector<Edit>& edits);

  /// Those that were not refused, in order.
  std::vector<Case> take() { return std::move(found_); }

 private:
  bool give_expectation(Case& candidate) const;
  bool keep_expectation(Case& candidate) const;
  bool add_those_that_fit(const std::vector<Edit>& edits, std::size_t begin, std::size_t end);

  const Case value_;
  const Measure measure_;
  const bool is_predicted_;
  std::set<std::string> texts_;  ///< of all that were proposed, as Measure::text
  std::vector<Case> found_;
};

}  // namespace lockstep::harness::fuzz
