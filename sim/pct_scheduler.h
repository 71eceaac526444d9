// SPDX-License-Identifier: Apache-2.0
// Probabilistic concurrency testing: few switches, at random places.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "core/rng.h"
#include "sim/scheduler.h"

namespace lockstep::sim {

/// Every actor gets a random priority; the highest one that can act does. At `depth` - 1 decisions,
/// drawn from a run's decisions with more than one actor, the one that has just been chosen falls
/// below everybody else.
///
/// Source: Burckhardt, Kothari, Musuvathi, Nagarakatte, "A randomized scheduler with probabilistic
/// guarantees of finding bugs" (ASPLOS 2010).
class PctScheduler final : public Scheduler {
 public:
  /// Errors: UsageError for a depth or number of decisions below 1.
  explicit PctScheduler(const ScheduleSpec& spec);

  Actor next(const Decision& decision) override;

 private:
  std::uint64_t priority_of(Actor actor);

  CounterRng random_;
  std::vector<std::int64_t> changes_;  // at the k-th of these decisions somebody falls to changes-k
  std::map<Actor, std::uint64_t> priorities_;
  std::int64_t num_choices_ = 0;
};

}  // namespace lockstep::sim
