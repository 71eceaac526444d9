// SPDX-License-Identifier: Apache-2.0
// One draw per decision.
#include "sim/random_scheduler.h"

#include "core/check.h"

namespace lockstep::sim {

std::int64_t RandomScheduler::next(const std::vector<std::int64_t>& runnable,
                                   std::int64_t /*current*/, bool /*may_stay*/) {
  LOCKSTEP_CHECK(!runnable.empty(), "nobody can run");
  return runnable[random_.below(runnable.size())];
}

}  // namespace lockstep::sim
