// SPDX-License-Identifier: Apache-2.0
// Looks up the deviation of each decision.
#include "sim/replay_scheduler.h"

#include <algorithm>
#include <utility>

namespace lockstep::sim {

ReplayScheduler::ReplayScheduler(Schedule schedule) : schedule_(std::move(schedule)) {}

Actor ReplayScheduler::next(const Decision& decision) {
  if (decision.actors.size() > 1) {
    const std::int64_t index = num_choices_++;
    if (next_deviation_ < schedule_.size() && schedule_[next_deviation_].index == index) {
      const Actor actor = schedule_[next_deviation_++].actor;
      if (std::binary_search(decision.actors.begin(), decision.actors.end(), actor)) {
        return actor;
      }
    }
  }
  return default_choice(decision);
}

}  // namespace lockstep::sim
