// SPDX-License-Identifier: Apache-2.0
// The schedules that a case asks for, one after the other.
#pragma once

#include <cstdint>
#include <optional>

#include "harness/case.h"
#include "sim/exhaustive_search.h"
#include "sim/world.h"

namespace lockstep::harness {

/// Hands out what a run's schedule is decided by. For exhaustive ones, every run has to be made
/// before the next is asked for.
class Schedules {
 public:
  /// `decisions`: how many a run takes; for pct only. Errors: UsageError for deviations that are
  /// none.
  Schedules(const Case& value, std::int64_t decisions);

  /// Fills in the schedule of the next run; false if there is none left, or no more may be tried.
  bool next(sim::WorldOptions& options);

  bool are_many() const;
  /// After `next` has said false: there are no schedules but those handed out.
  bool were_all() const { return none_left_; }
  std::int64_t num_schedules() const;
  /// Exhaustive, after `next` has said false: see ExhaustiveSearch.
  std::optional<double> num_orders() const {
    return search_ ? search_->num_orders() : std::nullopt;
  }
  std::int64_t num_repetitions() const { return search_ ? search_->num_abandoned() : 0; }

 private:
  ScheduleSpec spec_;
  sim::ScheduleSpec base_;
  std::optional<sim::ExhaustiveSearch> search_;
  std::int64_t num_handed_out_ = 0;
  bool none_left_ = false;
  bool has_surplus_ = false;
};

}  // namespace lockstep::harness
