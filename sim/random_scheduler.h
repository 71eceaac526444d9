// SPDX-License-Identifier: Apache-2.0
// The policy that explores: any runnable rank, by seed.
#pragma once

#include <cstdint>
#include <vector>

#include "core/rng.h"
#include "sim/scheduler.h"

namespace lockstep::sim {

/// Picks uniformly among the runnable ranks, the current one included where it can go on.
class RandomScheduler final : public Scheduler {
 public:
  explicit RandomScheduler(std::uint64_t seed) : random_(seed, RngStream::kSchedule) {}

  std::int64_t next(const std::vector<std::int64_t>& runnable, std::int64_t current,
                    bool may_stay) override;

 private:
  CounterRng random_;
};

}  // namespace lockstep::sim
