// SPDX-License-Identifier: Apache-2.0
// Which scripts are drawn.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep::harness::fuzz {

enum class Mode {
  kValid,   ///< without a mistake: must end equal, or within the derived bound
  kBroken,  ///< with a planted one: must end as rules predict
};

/// The part of the scenario space that is drawn from.
struct Space {
  Mode mode = Mode::kValid;
  std::string sync = "ddp";     ///< the subject, as in [ddp]
  std::string backend = "sim";  ///< where it runs; "sim" also draws schedules
  /// Only what PyTorch's reducer is expected to do as ours (judge/peer_rules.h). Always so with
  /// sync = "torch".
  bool for_peer = false;
  std::int64_t ranks_max = 8;
};

}  // namespace lockstep::harness::fuzz
