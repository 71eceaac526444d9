// SPDX-License-Identifier: Apache-2.0
// Fewer and simpler schedules.
#include "harness/fuzz/shrink/reductions.h"
#include "harness/scenario.h"
#include "sim/scheduler.h"

namespace lockstep::harness::fuzz {

void reduce_schedule(Candidates& candidates) {
  const ScheduleSpec& schedule = candidates.value().schedule;
  candidates.add([](Case& value) {
    value.schedule = {};
    expect_every_schedule(value);
  });
  if (schedule.policy != "replay") return;
  const sim::Schedule deviations = sim::parse_schedule(schedule.deviations);
  std::vector<Edit> edits;
  for (const sim::Deviation& deviation : deviations) {
    edits.push_back([deviation](Case& value) {
      sim::Schedule left = sim::parse_schedule(value.schedule.deviations);
      for (auto it = left.begin(); it != left.end(); ++it) {
        if (*it == deviation) {
          left.erase(it);
          break;
        }
      }
      value.schedule.deviations = sim::to_string(left);
    });
  }
  candidates.add_chunks(edits);
}

void reduce_runs(Candidates& candidates) {
  const ScheduleSpec& schedule = candidates.value().schedule;
  for (const std::int64_t runs : {std::int64_t{1}, schedule.runs / 4, schedule.runs / 2}) {
    if (runs < 1 || runs >= schedule.runs) continue;
    candidates.add([runs](Case& value) { value.schedule.runs = runs; });
  }
  candidates.add([](Case& value) { value.schedule.first_step = ScheduleSpec{}.first_step; });
  candidates.add([](Case& value) { value.schedule.depth = ScheduleSpec{}.depth; });
}

}  // namespace lockstep::harness::fuzz
