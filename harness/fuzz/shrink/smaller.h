// SPDX-License-Identifier: Apache-2.0
// Scripts with less in them.
#pragma once

#include <vector>

#include "harness/case.h"
#include "harness/fuzz/shrink/candidates.h"

namespace lockstep::harness::fuzz {

/// One way to make scripts smaller.
struct Reduction {
  const char* name;  ///< "ranks", "blocks", ...
  void (*propose)(Candidates&);
};

/// All of them, those that take away most first.
const std::vector<Reduction>& reductions();

/// Cases that a person would call simpler than `value`: fewer ranks, steps, blocks, events,
/// options, a shorter schedule; the boldest first, each one sound (check_case finds nothing).
/// Where the [expect] of `value` is what is predicted of it, each has its own prediction; else it
/// keeps what was written as far as check_case allows, and as many [[at]] and [[fault]] where
/// these were to end badly. Repeated from the first that still shows what was found, this ends:
/// every step makes the case smaller by the same measure (script_size.h).
/// Precondition: check_case(value) finds nothing.
std::vector<Case> smaller(const Case& value);

/// The same by one reduction alone.
std::vector<Case> smaller(const Case& value, const Reduction& reduction);

}  // namespace lockstep::harness::fuzz
