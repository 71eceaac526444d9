// SPDX-License-Identifier: Apache-2.0
// From a specification to a policy, and what all of them share.
#include "sim/scheduler.h"

#include <algorithm>

#include "core/check.h"
#include "sim/pct_scheduler.h"
#include "sim/random_scheduler.h"
#include "sim/replay_scheduler.h"
#include "sim/round_robin_scheduler.h"

namespace lockstep::sim {

Actor default_choice(const Decision& decision) {
  LOCKSTEP_CHECK(!decision.actors.empty(), "nobody can run");
  const auto first_completion =
      std::lower_bound(decision.actors.begin(), decision.actors.end(), kFirstCompletion);
  if (first_completion != decision.actors.end()) {
    return *first_completion;
  }
  if (decision.may_stay) {
    return decision.current;
  }
  const auto after =
      std::upper_bound(decision.actors.begin(), decision.actors.end(), decision.current);
  return after == decision.actors.end() ? decision.actors.front() : *after;
}

std::unique_ptr<Scheduler> make_scheduler(const ScheduleSpec& spec) {
  switch (spec.policy) {
    case SchedulePolicy::kRoundRobin:
      return std::make_unique<RoundRobinScheduler>();
    case SchedulePolicy::kRandom:
      return std::make_unique<RandomScheduler>(spec);
    case SchedulePolicy::kPct:
      return std::make_unique<PctScheduler>(spec);
    case SchedulePolicy::kReplay:
      return std::make_unique<ReplayScheduler>(spec.schedule);
  }
  throw UsageError("unknown schedule policy");
}

}  // namespace lockstep::sim
