// SPDX-License-Identifier: Apache-2.0
// The event log of a simulated run and its hash.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/observer.h"

namespace lockstep::sim {

/// One line of the log.
struct TraceEntry {
  std::int64_t time_ns = 0;  ///< virtual
  std::int64_t rank = 0;
  Event event;
  std::string detail;  ///< collectives: "all_reduce (bucket 0, step 1, 42 x Float)"; else empty
};

/// Events in the order in which they happened; the hash covers all of them in every build, and the
/// result bytes of every collective. A wait is logged where it blocks.
struct Trace {
  std::vector<TraceEntry> entries;  ///< empty unless the run was asked to keep them
  std::uint64_t hash = 0;
  std::int64_t num_events = 0;
};

}  // namespace lockstep::sim
