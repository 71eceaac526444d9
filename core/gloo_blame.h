// SPDX-License-Identifier: Apache-2.0
// Whose fault it is that a collective failed, from what a rank can see. Internal to the Gloo
// transport.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/comm_failure.h"

namespace lockstep {

/// What a rank says to its peers when it goes.
struct Farewell {
  enum class Kind {
    kNone,    ///< nothing so far
    kDone,    ///< finish without me
    kGaveUp,  ///< I have waited too long; whoever comes now comes too late
    kLost,    ///< I have lost `lost_rank`, and so have you
  };
  Kind kind = Kind::kNone;
  std::int64_t lost_rank = -1;

  /// Whether the sender has broken its connections on purpose.
  bool explains_itself() const { return kind == Kind::kGaveUp || kind == Kind::kLost; }
};

/// As one byte on the wire. Ranks above 252 cannot be named; their loss becomes kGaveUp.
std::uint8_t encode_farewell(const Farewell& farewell);
Farewell decode_farewell(std::uint8_t byte);

/// What a rank knows when a collective has failed.
struct FailureEvidence {
  std::int64_t rank = 0;
  std::string where;   ///< the rank and its collective, in words
  std::string reason;  ///< what Gloo threw
  bool timed_out = false;
  std::chrono::milliseconds timeout{0};
  std::vector<Farewell> farewells;                           ///< [world_size], of each peer
  std::vector<std::pair<std::int64_t, std::string>> broken;  ///< connections, and Gloo's reason
  std::vector<std::int64_t> missing;  ///< peers that have not entered the collective
  bool aborted = false;               ///< the communicator is being destroyed
};

struct Blame {
  CommFailure failure;
  Farewell farewell;  ///< what the peers should be told; kNone: nothing
};

/// Peers that have said why they went are no cause. Whoever else has gone is, then whom they have
/// lost, then whoever has not entered the collective, and else this rank itself, which came when
/// the others had given up.
Blame blame_for(const FailureEvidence& evidence);

}  // namespace lockstep
