// SPDX-License-Identifier: Apache-2.0
// Always the default choice.
#include "sim/round_robin_scheduler.h"

namespace lockstep::sim {

Actor RoundRobinScheduler::next(const Decision& decision) { return default_choice(decision); }

}  // namespace lockstep::sim
