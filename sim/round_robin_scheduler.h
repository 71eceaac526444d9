// SPDX-License-Identifier: Apache-2.0
// The policy with the fewest switches.
#pragma once

#include "sim/scheduler.h"

namespace lockstep::sim {

/// The default choice, always.
class RoundRobinScheduler final : public Scheduler {
 public:
  Actor next(const Decision& decision) override;
};

}  // namespace lockstep::sim
