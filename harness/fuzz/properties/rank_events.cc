// SPDX-License-Identifier: Apache-2.0
// Reads the events back from a trace.
#include "harness/fuzz/properties/rank_events.h"

#include <sstream>

#include "core/check.h"
#include "harness/executor.h"
#include "harness/judge/judge_schedules.h"

namespace lockstep::harness::fuzz {

std::vector<std::vector<RankEvent>> events_in(const std::string& trace_text, std::int64_t ranks) {
  std::vector<std::vector<RankEvent>> events(static_cast<std::size_t>(ranks));
  std::istringstream lines(trace_text);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string time, unit, who;
    std::size_t rank = 0;
    RankEvent event;
    words >> time >> unit >> who >> rank >> event.kind >> event.index;
    LOCKSTEP_CHECK(words && rank < events.size(), "no line of a trace: '{}'", line);
    events[rank].push_back(event);
  }
  return events;
}

std::vector<std::vector<RankEvent>> events_of(const Case& value, const Run& subject) {
  SimExecutorOptions options;
  options.keep_trace = true;
  options.repeat_one_in = 0;
  const auto simulator = make_sim_executor(options);
  const Run run = simulator->execute(compile_subject(on_schedule(value, subject.schedule)));
  return events_in(run.trace_text, value.world.ranks);
}

}  // namespace lockstep::harness::fuzz
