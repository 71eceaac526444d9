// SPDX-License-Identifier: Apache-2.0
// Names of phases; which blocks ran.
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

void Position::set_blocks_run(const std::vector<bool>& blocks_run) {
  const std::lock_guard<std::mutex> lock(mutex_);
  blocks_run_ = blocks_run;
}

std::vector<bool> Position::blocks_run() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return blocks_run_;
}

}  // namespace lockstep::harness
