// SPDX-License-Identifier: Apache-2.0
// Contradictions in [schedule], and between it and what is expected of schedules.
#include <fmt/format.h>

#include "core/check.h"
#include "harness/scenario/rules.h"
#include "sim/scheduler.h"

namespace lockstep::harness {
void check_expected_schedules(const Case& value, const ExpectSpec& expect, const std::string& path,
                              std::vector<CaseFinding>& findings) {
  const ScheduleSpec& schedule = value.schedule;
  const bool is_one = schedule.policy == "round_robin" || schedule.policy == "replay" ||
                      (schedule.policy != "exhaustive" && schedule.runs == 1);
  if (expect.schedules == "some" && is_one) {
    findings.push_back({{path + ".schedules", "schedule.policy"},
                        "schedules = \"some\", but only one schedule is tried; set schedule.policy "
                        "to \"exhaustive\", or to \"random\" or \"pct\" with more schedule.runs"});
  }
}

void check_schedule(const Case& value, std::vector<CaseFinding>& findings) {
  const ScheduleSpec& schedule = value.schedule;
  const ScheduleSpec defaults;
  const auto only_for = [&](const char* key, bool is_default, bool fits, const char* policies) {
    if (!is_default && !fits) {
      findings.push_back(
          {{fmt::format("schedule.{}", key), "schedule.policy"},
           fmt::format("policy \"{}\" takes no {}; it is for {}", schedule.policy, key, policies)});
    }
  };
  const bool drawn = schedule.policy == "random" || schedule.policy == "pct";
  only_for("first_step", schedule.first_step == defaults.first_step,
           drawn || schedule.policy == "exhaustive", "\"random\", \"pct\" and \"exhaustive\"");
  only_for("runs", schedule.runs == defaults.runs, drawn, "\"random\" and \"pct\"");
  only_for("depth", schedule.depth == defaults.depth, schedule.policy == "pct", "\"pct\"");
  only_for("runs_max", schedule.runs_max == defaults.runs_max, schedule.policy == "exhaustive",
           "\"exhaustive\"");
  only_for("deviations", schedule.deviations.empty(), schedule.policy == "replay", "\"replay\"");
  try {
    sim::parse_schedule(schedule.deviations);
  } catch (const UsageError& error) {
    findings.push_back({{"schedule.deviations"}, error.what()});
  }
}

}  // namespace lockstep::harness
