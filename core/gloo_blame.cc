// SPDX-License-Identifier: Apache-2.0
// From evidence to the error that a rank throws.
#include "core/gloo_blame.h"

#include <fmt/ranges.h>

namespace lockstep {
namespace {

constexpr int kDoneCode = 1, kGaveUpCode = 2, kLostCode = 3, kCodeMax = 255;

Blame lost(const FailureEvidence& evidence, std::int64_t peer, const std::string& why) {
  return {{CommFailure::Kind::kPeerLost,
           fmt::format("{}: lost rank {} ({})", evidence.where, peer, why)},
          evidence.aborted ? Farewell{} : Farewell{Farewell::Kind::kLost, peer}};
}

}  // namespace

std::uint8_t encode_farewell(const Farewell& farewell) {
  switch (farewell.kind) {
    case Farewell::Kind::kNone:
      return 0;
    case Farewell::Kind::kDone:
      return kDoneCode;
    case Farewell::Kind::kGaveUp:
      return kGaveUpCode;
    case Farewell::Kind::kLost:
      break;
  }
  return static_cast<std::uint8_t>(
      farewell.lost_rank <= kCodeMax - kLostCode ? kLostCode + farewell.lost_rank : kGaveUpCode);
}

Farewell decode_farewell(std::uint8_t byte) {
  switch (byte) {
    case 0:
      return {};
    case kDoneCode:
      return {Farewell::Kind::kDone, -1};
    case kGaveUpCode:
      return {Farewell::Kind::kGaveUp, -1};
    default:
      return {Farewell::Kind::kLost, byte - kLostCode};
  }
}

Blame blame_for(const FailureEvidence& evidence) {
  const auto of = [&](std::int64_t peer) -> const Farewell& {
    return evidence.farewells[static_cast<std::size_t>(peer)];
  };
  std::vector<std::int64_t> late;
  for (const std::int64_t peer : evidence.missing) {
    if (!of(peer).explains_itself()) {
      late.push_back(peer);
    }
  }
  const std::string absent = late.empty()
                                 ? std::string("every rank had entered it")
                                 : fmt::format("not entered by rank {}", fmt::join(late, ", "));
  for (const auto& [peer, why] : evidence.broken) {
    if (!of(peer).explains_itself()) {
      return lost(evidence, peer, fmt::format("{}; {}", why, absent));
    }
  }
  std::vector<std::int64_t> gave_up;
  for (std::size_t peer = 0; peer < evidence.farewells.size(); ++peer) {
    const Farewell& farewell = evidence.farewells[peer];
    if (farewell.kind == Farewell::Kind::kLost && farewell.lost_rank != evidence.rank) {
      return lost(evidence, farewell.lost_rank, fmt::format("as rank {} says; {}", peer, absent));
    }
    if (farewell.explains_itself()) {
      gave_up.push_back(static_cast<std::int64_t>(peer));
    }
  }
  if (!gave_up.empty() && late.empty()) {
    return {{CommFailure::Kind::kPeerLost, fmt::format("{}: rank {} had given up waiting",
                                                       evidence.where, fmt::join(gave_up, ", "))},
            {}};
  }
  if (evidence.timed_out || !gave_up.empty()) {
    return {
        {CommFailure::Kind::kTimedOut, fmt::format("{}: timed out after {} ms: {}", evidence.where,
                                                   evidence.timeout.count(), absent)},
        {Farewell::Kind::kGaveUp, -1}};
  }
  return {{CommFailure::Kind::kOther,
           fmt::format("{}: given up ({}); {}", evidence.where,
                       evidence.aborted ? "the communicator is being destroyed" : evidence.reason,
                       absent)},
          {}};
}

}  // namespace lockstep
