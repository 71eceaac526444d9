// SPDX-License-Identifier: Apache-2.0
// One case: its runs, their verdicts, and what else they are compared with.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "harness/case_facts.h"
#include "harness/judge/judge.h"
#include "harness/judge/judge_schedules.h"
#include "harness/judge/peer_comparison.h"
#include "harness/judge/peer_rules.h"
#include "harness/program.h"
#include "harness/scenario.h"
#include "harness/snapshot.h"
#include "harness/wall_clock.h"
#include "sim/scheduler.h"

namespace lockstep::harness {
namespace {

const Snapshot* final_parameters(const RankRun& rank) {
  if (rank.final_parameters.slots != nullptr) {
    return &rank.final_parameters;
  }
  return rank.steps.empty() ? nullptr : &rank.steps.back().parameters;
}

// Whether both ended alike, with the same steps and the same bits at the end.
bool same_final_parameters(const Run& a, const Run& b) {
  for (std::size_t rank = 0; rank < a.ranks.size(); ++rank) {
    const Snapshot* x = final_parameters(a.ranks[rank]);
    const Snapshot* y = final_parameters(b.ranks[rank]);
    if (a.ranks[rank].ending != b.ranks[rank].ending ||
        a.ranks[rank].steps.size() != b.ranks[rank].steps.size() ||
        (x != nullptr && !same_bits(*x, *y))) {
      return false;
    }
  }
  return true;
}

// `base` with what a run of the case came to.
CaseResult judge_one_run(const CaseResult& base, const Case& value, const JudgeOptions& options,
                         const Run& subject) {
  const ExpectSpec& expect = expectation(value, options.backend);
  CaseResult result = base;
  result.trace_hash = subject.trace_hash;
  result.schedule = subject.schedule;
  result.bucket_all_reduces = subject.ranks.front().bucket_all_reduces;
  result.rebuilds = subject.ranks.front().rebuilds;
  for (const RankRun& rank : subject.ranks) {
    result.longest_wait_ns = std::max(result.longest_wait_ns, rank.longest_wait_ns);
  }
  result.outcome = judge_run(
      on_schedule(value, subject.schedule), expect, subject,
      options.try_cures && runs_on(value, "sim") ? options.simulator : nullptr, &result.steps);
  result.complaints = complaints_about(expect, result);
  // PyTorch's reducer may end a case before it comes to what is planted: then a reason is told.
  const bool ends_early = !expect.reason.empty();
  for (const auto& complaints :
       {complaints_about_issued(expect, subject), complaints_about_values(expect, subject),
        complaints_about_ends(expect, subject),
        ends_early ? std::vector<std::string>() : complaints_about_planted(value, subject)}) {
    result.complaints.insert(result.complaints.end(), complaints.begin(), complaints.end());
  }
  return result;
}

void judge_into(CaseResult& result, const Case& value, const JudgeOptions& options) {
  const Program program = compile_subject(value);
  const Run subject = options.executor->execute(program);
  const CaseResult base = result;
  result = judge_schedules(
      subject, expectation(value, options.backend),
      {[&](const Run& run) { return judge_one_run(base, value, options, run); },
       [&](const std::string& deviations) {
         return options.executor->execute(compile_subject(on_schedule(value, deviations)));
       }});
  if (value.schedule.policy == "replay" && options.backend == "sim" &&
      subject.schedule != sim::to_string(sim::parse_schedule(value.schedule.deviations))) {
    result.complaints.push_back(fmt::format(
        "the case does not take the schedule \"{}\" (any more): what could be done of it "
        "is \"{}\"",
        value.schedule.deviations, subject.schedule));
  }
  if (value.schedule.policy == "exhaustive" && result.schedules && !result.schedules->all) {
    result.complaints.push_back(fmt::format(
        "not exhaustive: there are more than schedule.runs_max = {} schedules; raise it, make the "
        "case smaller, or take schedule.policy = \"pct\"",
        value.schedule.runs_max));
    result.of_one_schedule = false;
  }
  if (options.backend != "sim" && options.simulator != nullptr) {
    const bool ends_well = result.outcome.kind == OutcomeKind::kEqual ||
                           result.outcome.kind == OutcomeKind::kWithinBound ||
                           result.outcome.kind == OutcomeKind::kDiverged;
    if (ends_well && runs_on(value, "sim")) {
      result.equals_simulator = same_final_parameters(
          subject, options.simulator->execute(compile_subject(on_schedule(value, ""))));
      if (result.equals_simulator == false) {
        result.complaints.push_back(
            "the ranks did not end as in the simulator, with bit-equal final parameters");
      }
    }
  }
  if (options.against_torch && value.ddp.peer_can_stand_in()) {
    // Both on the default schedule: the peer's decisions are not ours.
    const Case once = on_schedule(value, "");
    const bool is_default =
        options.backend != "sim" || value.schedule.policy == once.schedule.policy;
    result.peer = compare_with_torch(
        once, is_default ? subject : options.executor->execute(compile_subject(once)),
        *options.executor);
    const std::vector<std::string> found = complaints_about(*result.peer);
    result.complaints.insert(result.complaints.end(), found.begin(), found.end());
    const std::string why = why_peer_may_differ(value);
    if (!found.empty() && result.peer->reason.empty() && !why.empty()) {
      result.complaints.push_back(fmt::format(
          "cases like this are known to differ: {}; if that is all, say so in [expect.torch]",
          why));
    }
  }
  result.as_expected = result.complaints.empty();
}

}  // namespace

CaseResult judge_case(const NamedCase& named, const JudgeOptions& options) {
  CaseResult result;
  result.file = named.file;
  result.name = named.name;
  result.title = named.value.title;
  result.backend = options.backend;
  const double start_seconds = wall_seconds();
  if (!runs_on(named.value, options.backend) || named.value.world.ranks > options.ranks_max) {
    result.skipped = true;
    return result;
  }
  try {
    judge_into(result, named.value, options);
  } catch (const std::exception& error) {
    result.internal_error = error.what();
  }
  if (!result.as_expected) {
    result.replay_toml = print_case(
        result.of_one_schedule ? on_schedule(named.value, result.schedule) : named.value);
  }
  result.seconds = wall_seconds() - start_seconds;
  return result;
}

}  // namespace lockstep::harness
