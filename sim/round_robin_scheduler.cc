// SPDX-License-Identifier: Apache-2.0
// Cyclic order over the runnable ranks.
#include "sim/round_robin_scheduler.h"

#include <algorithm>

#include "core/check.h"

namespace lockstep::sim {

std::int64_t RoundRobinScheduler::next(const std::vector<std::int64_t>& runnable,
                                       std::int64_t current, bool may_stay) {
  LOCKSTEP_CHECK(!runnable.empty(), "nobody can run");
  if (may_stay) {
    return current;
  }
  const auto after = std::upper_bound(runnable.begin(), runnable.end(), current);
  return after == runnable.end() ? runnable.front() : *after;
}

}  // namespace lockstep::sim
