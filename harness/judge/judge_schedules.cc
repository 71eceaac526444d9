// SPDX-License-Identifier: Apache-2.0
// Verdicts over schedules.
#include "harness/judge/judge_schedules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "harness/scenario.h"
#include "sim/scheduler.h"

namespace lockstep::harness {
namespace {

constexpr std::int64_t kShrinkRunsMax = 200;

bool ended_well(const CaseResult& result) {
  return result.outcome.kind == OutcomeKind::kEqual ||
         result.outcome.kind == OutcomeKind::kWithinBound;
}

// The same failure on a shorter schedule, if there is one.
CaseResult shrunk(CaseResult failing, const ScheduleJudge& judge) {
  CaseResult best = std::move(failing);
  shrink_schedule(best.schedule, kShrinkRunsMax, [&](const std::string& deviations) {
    CaseResult candidate = judge.judge(judge.run_on(deviations));
    const bool fails = !candidate.complaints.empty() &&
                       candidate.outcome.kind == best.outcome.kind &&
                       (!candidate.outcome.divergence || !best.outcome.divergence ||
                        candidate.outcome.divergence->phase == best.outcome.divergence->phase);
    if (fails) {
      best = std::move(candidate);
    }
    return fails;
  });
  return best;
}

CaseResult first_that(const std::vector<const Run*>& runs, const ScheduleJudge& judge,
                      bool as_expected, CaseResult otherwise) {
  for (const Run* run : runs) {
    CaseResult result = judge.judge(*run);
    if (result.complaints.empty() == as_expected) {
      return result;
    }
  }
  return otherwise;
}

}  // namespace

CaseResult judge_schedules(const Run& first, const ExpectSpec& expect, const ScheduleJudge& judge) {
  CaseResult result = judge.judge(first);
  std::vector<const Run*> others;
  if (first.search) {
    for (const std::shared_ptr<const Run>& run : first.search->different) {
      others.push_back(run.get());
    }
  }
  if (expect.schedules == "some") {
    if (!result.complaints.empty()) {
      result = first_that(others, judge, /*as_expected=*/true, std::move(result));
      result.of_one_schedule = result.complaints.empty();
    }
  } else {
    if (result.complaints.empty() && !others.empty()) {
      if (ended_well(result)) {
        result.complaints.push_back(fmt::format(
            "the numbers depend on the schedule: those of schedule \"{}\" are not those of \"{}\"",
            others.front()->schedule, first.schedule));
        result.of_one_schedule = false;
      }
      result = first_that(others, judge, /*as_expected=*/false, std::move(result));
    }
    if (!result.complaints.empty() && result.of_one_schedule && !result.schedule.empty()) {
      result = shrunk(std::move(result), judge);
    }
  }
  if (first.search) {
    const ScheduleSearch& search = *first.search;
    // One failure decides "all", one success "some".
    const bool decided = result.complaints.empty() == (expect.schedules == "some");
    if (!search.kept_all && !decided) {
      result.complaints.push_back(
          fmt::format("undecided: of {} runs that differ only {} were kept and judged; try fewer "
                      "schedules at a time",
                      search.num_different, search.different.size()));
      result.of_one_schedule = false;
    }
    result.schedules = ScheduleCount{search.num_schedules, search.num_repetitions,
                                     search.num_different, search.all, search.num_orders};
  }
  return result;
}

Case on_schedule(const Case& value, const std::string& deviations) {
  Case one = value;
  one.schedule = ScheduleSpec();
  expect_every_schedule(one);
  if (!deviations.empty()) {
    one.schedule.policy = "replay";
    one.schedule.deviations = deviations;
  }
  return one;
}

std::string shrink_schedule(const std::string& schedule, std::int64_t runs_max,
                            const std::function<bool(const std::string&)>& still_fails) {
  sim::Schedule best = sim::parse_schedule(schedule);
  std::int64_t num_runs = 0;
  // Chunks from all of it down to single deviations; a success starts over at the same size.
  for (std::size_t chunk = best.size(); chunk >= 1; chunk = chunk == 1 ? 0 : (chunk + 1) / 2) {
    bool shorter = true;
    while (shorter) {
      shorter = false;
      for (std::size_t at = 0; at < best.size() && num_runs < runs_max;) {
        sim::Schedule candidate = best;
        const auto begin = candidate.begin() + static_cast<std::ptrdiff_t>(at);
        candidate.erase(
            begin, begin + static_cast<std::ptrdiff_t>(std::min(chunk, candidate.size() - at)));
        ++num_runs;
        if (still_fails(sim::to_string(candidate))) {
          best = std::move(candidate);
          shorter = true;
        } else {
          at += chunk;
        }
      }
    }
  }
  return sim::to_string(best);
}

}  // namespace lockstep::harness
