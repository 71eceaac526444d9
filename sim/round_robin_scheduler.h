// SPDX-License-Identifier: Apache-2.0
// The policy with the fewest switches: a rank runs until it blocks or gives way.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/scheduler.h"

namespace lockstep::sim {

/// Stays with the current rank while it may stay; else the next runnable one in cyclic order.
class RoundRobinScheduler final : public Scheduler {
 public:
  std::int64_t next(const std::vector<std::int64_t>& runnable, std::int64_t current,
                    bool may_stay) override;
};

}  // namespace lockstep::sim
