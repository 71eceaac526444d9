// SPDX-License-Identifier: Apache-2.0
// From a specification to a policy.
#include "sim/scheduler.h"

#include "core/check.h"
#include "sim/random_scheduler.h"
#include "sim/round_robin_scheduler.h"

namespace lockstep::sim {

std::unique_ptr<Scheduler> make_scheduler(const ScheduleSpec& spec) {
  switch (spec.policy) {
    case SchedulePolicy::kRoundRobin:
      return std::make_unique<RoundRobinScheduler>();
    case SchedulePolicy::kRandom:
      return std::make_unique<RandomScheduler>(spec.seed);
  }
  throw UsageError("unknown schedule policy");
}

}  // namespace lockstep::sim
