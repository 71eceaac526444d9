// SPDX-License-Identifier: Apache-2.0
// The clock of a simulated world; it moves only when told to.
#pragma once

#include <cstdint>

#include "core/check.h"

namespace lockstep::sim {

/// Nanoseconds since the world began.
class VirtualClock {
 public:
  std::int64_t now_ns() const { return now_ns_; }

  /// Errors: InvariantError for a time that has passed.
  void advance_to(std::int64_t time_ns) {
    LOCKSTEP_CHECK(time_ns >= now_ns_, "the clock shows {} ns, not to be set back to {} ns",
                   now_ns_, time_ns);
    now_ns_ = time_ns;
  }

 private:
  std::int64_t now_ns_ = 0;
};

}  // namespace lockstep::sim
