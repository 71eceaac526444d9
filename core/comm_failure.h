// SPDX-License-Identifier: Apache-2.0
// Why a collective failed, in a form that several threads can throw. Internal to real transports.
#pragma once

#include <string>

#include "core/error.h"

namespace lockstep {

struct CommFailure {
  enum class Kind { kPeerLost, kTimedOut, kDesync, kOther, kInternal };
  Kind kind = Kind::kOther;
  std::string message;
};

/// Throws the class of error that belongs to the kind.
[[noreturn]] inline void throw_failure(const CommFailure& failure) {
  switch (failure.kind) {
    case CommFailure::Kind::kPeerLost:
      throw PeerLost(failure.message);
    case CommFailure::Kind::kTimedOut:
      throw TimedOut(failure.message);
    case CommFailure::Kind::kDesync:
      throw Desync(failure.message);
    case CommFailure::Kind::kOther:
      throw CommError(failure.message);
    case CommFailure::Kind::kInternal:
      break;
  }
  throw InvariantError(failure.message);
}

}  // namespace lockstep
