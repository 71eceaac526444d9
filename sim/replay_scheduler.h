// SPDX-License-Identifier: Apache-2.0
// The policy that takes a recorded path again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/scheduler.h"

namespace lockstep::sim {

/// The default choice, except at the schedule's deviations. One whose actor cannot act there is
/// passed over, so that a schedule is still one after parts of it were left out; what was really
/// done is in the run's result.
class ReplayScheduler final : public Scheduler {
 public:
  explicit ReplayScheduler(Schedule schedule);

  Actor next(const Decision& decision) override;

 private:
  Schedule schedule_;
  std::size_t next_deviation_ = 0;
  std::int64_t num_choices_ = 0;
};

}  // namespace lockstep::sim
