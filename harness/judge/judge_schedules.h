// SPDX-License-Identifier: Apache-2.0
// From the runs of several schedules to one verdict, and from a schedule that fails to a short one.
#pragma once

#include <functional>
#include <string>

#include "harness/case.h"
#include "harness/outcome.h"
#include "harness/run.h"

namespace lockstep::harness {

/// What a run is held against, and how to have another one.
struct ScheduleJudge {
  /// One run's result with its complaints.
  std::function<CaseResult(const Run&)> judge;
  /// A run of the same program on a schedule given by its deviations.
  std::function<Run(const std::string& deviations)> run_on;
};

/// The result of a run and of all schedules that were tried with it.
///
/// `expect.schedules = "all"`: the first run that is not as expected, its schedule shrunk; a
/// complaint also where all end well, as expected, but not with the same bits. "some": the
/// first run that is as expected.
CaseResult judge_schedules(const Run& first, const ExpectSpec& expect, const ScheduleJudge& judge);

/// The case as it is replayed on one schedule.
Case on_schedule(const Case& value, const std::string& deviations);

/// Leaves out deviations of `schedule` (ddmin), asking `still_fails` of each shorter one, until
/// none can be spared or `runs_max` were tried. `still_fails` is asked for schedules shorter than
/// the given one.
std::string shrink_schedule(const std::string& schedule, std::int64_t runs_max,
                            const std::function<bool(const std::string&)>& still_fails);

}  // namespace lockstep::harness
