// SPDX-License-Identifier: Apache-2.0
// Names of outcomes, the same words that scenarios use.
#include "harness/outcome.h"

namespace lockstep::harness {

const char* to_string(OutcomeKind kind) {
  switch (kind) {
    case OutcomeKind::kEqual:
      return "equal";
    case OutcomeKind::kWithinBound:
      return "within_bound";
    case OutcomeKind::kDiverged:
      return "diverged";
    case OutcomeKind::kDeadlock:
      return "deadlock";
    case OutcomeKind::kError:
      return "error";
    case OutcomeKind::kCrash:
      return "crash";
    case OutcomeKind::kPredicted:
      return "predicted";
  }
  return "unknown";
}

}  // namespace lockstep::harness
