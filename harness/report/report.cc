// SPDX-License-Identifier: Apache-2.0
// Verdicts and counts.
#include "harness/report/report.h"

namespace lockstep::harness {

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPassed:
      return "passed";
    case Verdict::kFailed:
      return "failed";
    case Verdict::kSkipped:
      return "skipped";
    case Verdict::kDefect:
      return "defect";
  }
  return "unknown";
}

Verdict verdict_of(const CaseResult& result) {
  if (!result.internal_error.empty()) return Verdict::kDefect;
  if (result.skipped) return Verdict::kSkipped;
  const bool like_simulator = result.equals_simulator.value_or(true);
  return result.as_expected && like_simulator ? Verdict::kPassed : Verdict::kFailed;
}

void tally(const CaseResult& result, SuiteSummary& summary) {
  switch (verdict_of(result)) {
    case Verdict::kPassed:
      ++summary.passed;
      break;
    case Verdict::kSkipped:
      ++summary.skipped;
      return;
    case Verdict::kDefect:
      ++summary.defects;
      ++summary.failed;
      return;  // What came out before a defect says nothing.
    case Verdict::kFailed:
      ++summary.failed;
      break;
  }
  ++summary.by_kind.at(static_cast<std::size_t>(result.outcome.kind));
  if (result.equals_simulator.has_value()) {
    ++summary.compared_with_simulator;
    if (*result.equals_simulator) ++summary.equal_to_simulator;
  }
  if (result.schedules) {
    ++summary.searched;
    summary.num_schedules += result.schedules->num_schedules;
    if (result.schedules->all) ++summary.exhausted;
  }
  if (result.peer) {
    ++summary.compared_with_peer;
    if (result.peer->differences.empty()) {
      ++summary.equal_to_peer;
    } else if (!result.peer->reason.empty()) {
      ++summary.intended_differences;
    }
  }
}

int exit_status(const SuiteSummary& summary) {
  if (summary.signal != 0) return 128 + summary.signal;
  if (summary.defects > 0) return 3;
  return summary.failed > 0 ? 1 : 0;
}

}  // namespace lockstep::harness
