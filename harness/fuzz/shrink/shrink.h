// SPDX-License-Identifier: Apache-2.0
// From a case that shows something to the smallest that still does.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/outcome.h"

namespace lockstep::harness::fuzz {

/// Judges these cases, each on its own, the same case always alike (where "internal_error" was
/// found, it repeats every run, see SimExecutorOptions); the results are in the same order. It may
/// leave out those after the first, in order, of which `stop` is true.
using JudgeMany = std::function<std::vector<CaseResult>(
    const std::vector<Case>& cases, const std::function<bool(const CaseResult&)>& stop)>;

struct ShrinkLimits {
  std::int64_t judged_max = 2'000;  ///< cases
  double seconds_max = 60.0;        ///< real time
};

struct Shrunk {
  Case value;
  CaseResult result;
  std::int64_t num_steps = 0;   ///< cases that were smaller and showed the same
  std::int64_t num_judged = 0;  ///< those and the others
  bool is_minimal = true;       ///< nothing smaller shows it; false: a limit came first
};

/// `found` showed finding_kind(result); what comes back shows the same kind. The same arguments
/// give the same end, however many cases `judge` does at a time, unless time is the limit. Errors:
/// UsageError where finding_kind(result) is "".
Shrunk shrink(const Case& found, const CaseResult& result, const JudgeMany& judge,
              const ShrinkLimits& limits);

}  // namespace lockstep::harness::fuzz
