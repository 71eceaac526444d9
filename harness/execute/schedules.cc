// SPDX-License-Identifier: Apache-2.0
// From [schedule] to the simulator's policies.
#include "harness/execute/schedules.h"

namespace lockstep::harness {

Schedules::Schedules(const Case& value, std::int64_t decisions) : spec_(value.schedule) {
  base_.seed = value.seed;
  if (spec_.policy == "random") {
    base_.policy = sim::SchedulePolicy::kRandom;
  } else if (spec_.policy == "pct") {
    base_.policy = sim::SchedulePolicy::kPct;
    base_.depth = spec_.depth;
    base_.decisions = decisions;
  } else if (spec_.policy == "replay") {
    base_.policy = sim::SchedulePolicy::kReplay;
    base_.schedule = sim::parse_schedule(spec_.deviations);
  } else if (spec_.policy == "exhaustive") {
    search_.emplace(/*reduce=*/true);
  }
}

bool Schedules::are_many() const {
  return search_ || ((spec_.policy == "random" || spec_.policy == "pct") && spec_.runs > 1);
}

std::int64_t Schedules::num_schedules() const {
  return search_ ? search_->num_schedules() - (has_surplus_ ? 1 : 0) : num_handed_out_;
}

bool Schedules::next(sim::WorldOptions& options) {
  options.first_scheduled_step = spec_.first_step;
  if (search_) {
    const std::int64_t num_finished = search_->num_schedules();
    none_left_ = !search_->begin();
    if (!none_left_ && num_finished >= spec_.runs_max) {
      has_surplus_ = true;  // begun and not run
      return false;
    }
    options.scheduler = &*search_;
    return !none_left_;
  }
  if (num_handed_out_ == (are_many() ? spec_.runs : 1)) {
    return false;
  }
  options.schedule = base_;
  options.schedule.run = num_handed_out_++;
  return true;
}

}  // namespace lockstep::harness
