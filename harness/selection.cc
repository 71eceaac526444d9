// SPDX-License-Identifier: Apache-2.0
// Which cases of the loaded files run, and with what changed.
#include <fmt/ranges.h>

#include <algorithm>
#include <regex>
#include <set>
#include <utility>

#include "core/check.h"
#include "harness/report/text_case.h"
#include "harness/scenario.h"
#include "harness/scenario/schema.h"
#include "harness/suite.h"

namespace lockstep::harness {

namespace {

bool is_one_of(const Choices& choices, const std::string& name) {
  const std::vector<std::string> names = names_of(choices);
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// "ranks=2,seed=3" with another seed; unchanged if there is no seed in it.
std::string with_seed(const std::string& name, std::uint64_t seed) {
  static const std::regex kSeed(R"((^|,)seed=[^,]*)");
  return std::regex_replace(name, kSeed, fmt::format("$1seed={}", seed));
}

void replace_seed(std::vector<NamedCase>& cases, std::uint64_t seed) {
  std::set<std::pair<std::string, std::string>> seen;
  std::vector<NamedCase> kept;
  for (NamedCase& named : cases) {
    const std::string old_name = named.name;
    named.value.seed = seed;
    named.name = with_seed(named.name, seed);
    if (named.name == old_name || seen.insert({named.file, named.name}).second) {
      kept.push_back(std::move(named));
    }
  }
  cases = std::move(kept);
}

void replace_sync(std::vector<NamedCase>& cases, const std::string& sync) {
  LOCKSTEP_USAGE(is_one_of(sync_kinds(), sync), "unknown sync '{}'; expected one of {}", sync,
                 fmt::join(names_of(sync_kinds()), ", "));
  for (NamedCase& named : cases) {
    // PyTorch's reducer stands in for our DDP only: what a case says of other subjects holds.
    if (sync == "torch" && !named.value.ddp.peer_can_stand_in()) continue;
    named.value.ddp.sync = sync;
    const std::vector<CaseFinding> findings = check_case(named.value);
    LOCKSTEP_USAGE(findings.empty(), "{} cannot run with sync = \"{}\": {}",
                   case_label(named.file, named.name), sync, findings.front().message);
  }
}

/// Errors: UsageError.
std::int64_t whole_number(const std::string& text, const std::string& schedule) {
  constexpr std::size_t kMaxDigits = 9;
  LOCKSTEP_USAGE(!text.empty() && text.size() <= kMaxDigits &&
                     text.find_first_not_of("0123456789") == std::string::npos,
                 "--schedule '{}': '{}' is no whole number", schedule, text);
  return std::stoll(text);
}

/// Errors: UsageError for a policy or a form that does not exist.
ScheduleSpec schedule_of(const std::string& text) {
  ScheduleSpec spec;
  const std::size_t colon = text.find(':');
  spec.policy = text.substr(0, colon);
  LOCKSTEP_USAGE(is_one_of(schedule_policies(), spec.policy),
                 "unknown schedule '{}'; expected round_robin, random:RUNS, pct:DEPTH:RUNS, "
                 "exhaustive:RUNS_MAX or replay:DEVIATIONS",
                 text);
  if (colon == std::string::npos) return spec;
  const std::string rest = text.substr(colon + 1);
  LOCKSTEP_USAGE(spec.policy != "round_robin", "--schedule '{}': round_robin takes nothing", text);
  if (spec.policy == "replay") {
    spec.deviations = rest;
  } else if (spec.policy == "random") {
    spec.runs = whole_number(rest, text);
  } else if (spec.policy == "exhaustive") {
    spec.runs_max = whole_number(rest, text);
  } else {
    const std::size_t second = rest.find(':');
    spec.depth = whole_number(rest.substr(0, second), text);
    if (second != std::string::npos) spec.runs = whole_number(rest.substr(second + 1), text);
  }
  LOCKSTEP_USAGE(spec.runs > 0 && spec.depth > 0 && spec.runs_max > 0,
                 "--schedule '{}': numbers start at 1", text);
  return spec;
}

void replace_schedule(std::vector<NamedCase>& cases, const std::string& text) {
  const ScheduleSpec schedule = schedule_of(text);
  for (NamedCase& named : cases) {
    named.value.schedule = schedule;
    if (schedule.policy != "exhaustive" && schedule.runs == 1) expect_every_schedule(named.value);
    const std::vector<CaseFinding> findings = check_case(named.value);
    LOCKSTEP_USAGE(findings.empty(), "{} cannot run with --schedule '{}': {}",
                   case_label(named.file, named.name), text, findings.front().message);
  }
}

/// The compiled --filter. Errors: UsageError.
std::regex filter_of(const Selection& selection) {
  try {
    return std::regex(selection.filter);
  } catch (const std::regex_error& error) {
    throw UsageError(
        fmt::format("--filter '{}' is no regular expression: {}", selection.filter, error.what()));
  }
}

void check_shard(const Selection& selection) {
  LOCKSTEP_USAGE(
      selection.num_shards >= 1 && selection.shard >= 1 && selection.shard <= selection.num_shards,
      "shard {}/{} does not exist; the first of n is 1/n, the last n/n", selection.shard,
      selection.num_shards);
}

bool in_shard(std::size_t index, const Selection& selection) {
  return static_cast<std::int64_t>(index) % selection.num_shards + 1 == selection.shard;
}

}  // namespace

std::vector<NamedCase> select_cases(std::vector<NamedCase> cases, const Selection& selection) {
  check_shard(selection);
  if (!selection.sync.empty()) replace_sync(cases, selection.sync);
  if (!selection.schedule.empty()) replace_schedule(cases, selection.schedule);
  if (selection.seed) replace_seed(cases, *selection.seed);
  if (!selection.filter.empty()) {
    const std::regex filter = filter_of(selection);
    const auto unwanted = [&](const NamedCase& named) {
      return !std::regex_search(case_label(named.file, named.name), filter);
    };
    cases.erase(std::remove_if(cases.begin(), cases.end(), unwanted), cases.end());
  }
  std::vector<NamedCase> kept;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (in_shard(i, selection)) kept.push_back(std::move(cases[i]));
  }
  return kept;
}

std::vector<TimingStudy> select_studies(std::vector<TimingStudy> studies,
                                        const Selection& selection, std::size_t num_cases) {
  check_shard(selection);
  const std::regex filter = filter_of(selection);
  std::vector<TimingStudy> kept;
  for (TimingStudy& study : studies) {
    if (!std::regex_search(case_label(study.file, ""), filter)) continue;
    if (selection.seed) {
      for (TimingPoint& point : study.points) {
        point.setup.seed = static_cast<std::int64_t>(*selection.seed);
      }
    }
    kept.push_back(std::move(study));
  }
  std::vector<TimingStudy> mine;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (in_shard(num_cases + i, selection)) mine.push_back(std::move(kept[i]));
  }
  return mine;
}

}  // namespace lockstep::harness
