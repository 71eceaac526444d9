// SPDX-License-Identifier: Apache-2.0
// Priorities and where they change.
#include "sim/pct_scheduler.h"

#include <algorithm>

#include "core/check.h"

namespace lockstep::sim {

PctScheduler::PctScheduler(const ScheduleSpec& spec)
    : random_(spec.seed, RngStream::kSchedule, /*rank=*/0, /*step=*/spec.run) {
  LOCKSTEP_USAGE(spec.depth >= 1, "a PCT schedule has a depth of 1 or more, not {}", spec.depth);
  LOCKSTEP_USAGE(spec.decisions >= 1, "a PCT schedule spreads over 1 or more decisions, not {}",
                 spec.decisions);
  for (std::int64_t i = 1; i < spec.depth; ++i) {
    changes_.push_back(
        static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(spec.decisions))));
  }
  std::sort(changes_.begin(), changes_.end());
}

Actor PctScheduler::next(const Decision& decision) {
  LOCKSTEP_CHECK(!decision.actors.empty(), "nobody can run");
  Actor chosen = decision.actors.front();
  for (const Actor actor : decision.actors) {
    if (priority_of(actor) > priority_of(chosen)) {
      chosen = actor;
    }
  }
  if (decision.actors.size() == 1) {
    return chosen;
  }
  for (std::size_t i = 0; i < changes_.size(); ++i) {
    if (changes_[i] == num_choices_) {
      priorities_[chosen] =
          changes_.size() - i;  // below all that were drawn, each lower than before
    }
  }
  ++num_choices_;
  return chosen;
}

std::uint64_t PctScheduler::priority_of(Actor actor) {
  const auto [entry, is_new] = priorities_.try_emplace(actor, 0);
  if (is_new) {
    entry->second = (random_.next() >> 1) + (std::uint64_t{1} << 62);
  }
  return entry->second;
}

}  // namespace lockstep::sim
