// SPDX-License-Identifier: Apache-2.0
// Names of phases.
#include "harness/position.h"

#include "core/check.h"

namespace lockstep::harness {

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::kConstruction:
      return "construction";
    case Phase::kZeroGrad:
      return "zero_grad";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kSync:
      return "sync";
    case Phase::kUpdate:
      return "update";
    case Phase::kScript:
      return "script";
    case Phase::kJoin:
      return "join";
    case Phase::kDone:
      return "done";
  }
  throw InvariantError("unknown phase");
}

}  // namespace lockstep::harness
