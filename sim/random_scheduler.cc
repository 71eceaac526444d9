// SPDX-License-Identifier: Apache-2.0
// One draw per decision.
#include "sim/random_scheduler.h"

#include "core/check.h"

namespace lockstep::sim {

Actor RandomScheduler::next(const Decision& decision) {
  LOCKSTEP_CHECK(!decision.actors.empty(), "nobody can run");
  return decision.actors[random_.below(decision.actors.size())];
}

}  // namespace lockstep::sim
