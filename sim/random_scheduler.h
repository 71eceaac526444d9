// SPDX-License-Identifier: Apache-2.0
// The policy that wanders: anything that can happen, by seed.
#pragma once

#include "core/rng.h"
#include "sim/scheduler.h"

namespace lockstep::sim {

/// Picks uniformly among the actors, the current rank included where it can go on.
class RandomScheduler final : public Scheduler {
 public:
  explicit RandomScheduler(const ScheduleSpec& spec)
      : random_(spec.seed, RngStream::kSchedule, /*rank=*/0, /*step=*/spec.run) {}

  Actor next(const Decision& decision) override;

 private:
  CounterRng random_;
};

}  // namespace lockstep::sim
