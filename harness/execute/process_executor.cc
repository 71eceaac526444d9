// SPDX-License-Identifier: Apache-2.0
// From a program to worker processes, and from what became of them to a Run.
#include "harness/execute/process_executor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "harness/execute/process_case.h"
#include "harness/execute/waiting_in.h"
#include "harness/launch.h"
#include "harness/model.h"
#include "harness/scenario.h"

namespace lockstep::harness {
namespace {

// A process that is stopped goes on after three (see worker.cc).
constexpr int kQuietTimeouts = 5;

/// Number of collectives that a rank issued and that its peers can still count on.
std::int64_t posted_by(const RankFate& fate) {
  if (fate.died) {
    return 0;
  }
  return fate.ended ? fate.ended->posted : fate.where ? fate.where->posted : 0;
}

std::vector<std::int64_t> ranks_without(const std::vector<RankFate>& fates, std::int64_t seq) {
  std::vector<std::int64_t> ranks;
  for (std::size_t rank = 0; rank < fates.size(); ++rank) {
    if (posted_by(fates[rank]) <= seq) {
      ranks.push_back(static_cast<std::int64_t>(rank));
    }
  }
  return ranks;
}

RankRun record_of_dead(const RankFate& fate, std::int64_t rank) {
  RankRun record;
  record.ending = Ending::kCrashed;
  record.signal = fate.died->signal;
  record.at_step = fate.step;
  if (record.signal != 0) {
    record.error_kind = "signal";
    record.error_message = fmt::format("the process of rank {} was ended by signal {} ({})", rank,
                                       record.signal, ::strsignal(record.signal));
  } else {
    record.error_kind = "exit";
    record.error_message =
        fmt::format("the process of rank {} exited with status {}", rank, fate.died->status);
  }
  return record;
}

RankRun record_of_stuck(const std::vector<RankFate>& fates, std::int64_t rank) {
  const RankFate& fate = fates[static_cast<std::size_t>(rank)];
  RankRun record;
  if (fate.where && !fate.where->position.empty()) {
    record = deserialize_rank_run(fate.where->position);
  } else {
    record.at_step = fate.step;
    record.at_phase = fate.is_connected ? "" : "rendezvous";
  }
  record.ending = Ending::kWaiting;
  record.error_kind.clear();
  record.error_message.clear();
  if (!fate.was_asked) {
    record.error_kind = "cut_short";
    record.error_message =
        fmt::format("the ranks could not all meet, so rank {} did not get further", rank);
  } else if (!fate.where) {
    record.error_kind = "unresponsive";
    record.error_message = fmt::format("the process of rank {} did not answer", rank);
  } else if (fate.where->waiting) {
    record.waiting = waiting_in(*fate.where->waiting);
    record.waiting->waiting_for = ranks_without(fates, fate.where->waiting->seq);
  } else {
    record.error_kind = "still_computing";
    record.error_message = fmt::format("rank {} was in no collective", rank);
  }
  return record;
}

RankRun record_of(const std::vector<RankFate>& fates, std::int64_t rank) {
  const RankFate& fate = fates[static_cast<std::size_t>(rank)];
  RankRun record = fate.died    ? record_of_dead(fate, rank)
                   : fate.ended ? deserialize_rank_run(fate.ended->record)
                                : record_of_stuck(fates, rank);
  record.rank = rank;
  return record;
}

/// What Gloo says of a lost connection names ports, and depends on which of several was noticed
/// first. What matters is whose process had ended.
void name_the_dead(const std::vector<RankFate>& fates, RankRun& record) {
  std::vector<std::size_t> dead;
  for (std::size_t rank = 0; rank < fates.size(); ++rank) {
    if (fates[rank].died) {
      dead.push_back(rank);
    }
  }
  const std::size_t cause = record.error_message.find(": lost rank ");
  if (record.error_kind == "peer_lost" && cause != std::string::npos && !dead.empty()) {
    record.error_message.resize(cause);
    record.error_message += fmt::format(": lost rank{} {}: process ended",
                                        dead.size() == 1 ? "" : "s", fmt::join(dead, ", "));
  }
}

bool agree(const sim::CollectiveInfo& a, const sim::CollectiveInfo& b) {
  return a.kind == b.kind && a.op == b.op && a.tag == b.tag && a.numel == b.numel &&
         a.dtype == b.dtype && a.root == b.root;
}

/// The first two ranks that failed in the same collective with different ideas of it.
std::optional<MismatchInfo> mismatch_of(const std::vector<RankFate>& fates, const Run& run) {
  const sim::CollectiveInfo* first = nullptr;
  std::int64_t first_rank = -1;
  for (std::size_t rank = 0; rank < fates.size(); ++rank) {
    if (run.ranks[rank].error_kind != "desync" || !fates[rank].ended->failed_in) {
      continue;
    }
    const sim::CollectiveInfo& info = *fates[rank].ended->failed_in;
    if (first == nullptr) {
      first = &info;
      first_rank = static_cast<std::int64_t>(rank);
    } else if (first->seq == info.seq && !agree(*first, info)) {
      return MismatchInfo{info.seq, first_rank, static_cast<std::int64_t>(rank),
                          sim::to_string(*first), sim::to_string(info)};
    }
  }
  return std::nullopt;
}

/// The case for its workers. They run it and do not judge it, so they are not told what is
/// expected; nor would they accept expectations that contradict the case, as a changed case may
/// have.
std::string text_for_workers(Case value) {
  value.expect = ExpectSpec();
  value.expect.oracles = {"ranks"};  // which any case can promise
  value.expect_sim.reset();
  value.expect_gloo.reset();
  value.expect_torch.clear();
  return print_case(value);
}

/// Where ranks have a time limit of their own, it ends the run before the watch does.
ProcessCaseOptions case_options(const ProcessExecutorOptions& options, const Case& value) {
  ProcessCaseOptions result;
  result.transport = options.transport;
  result.watch.hang_after = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(options.hang_after_seconds));
  result.transfer_timeout_ms = value.world.timeout_ms;
  if (value.world.timeout_ms > 0) {
    const std::chrono::milliseconds timeout(value.world.timeout_ms);
    result.watch.hang_after =
        std::max<std::chrono::nanoseconds>(result.watch.hang_after, kQuietTimeouts * timeout);
    result.watch.settle = kQuietTimeouts * timeout;
  }
  result.launch = value.launch;
  if (value.launch.is_asked_for()) {
    result.connect_within = std::max<std::chrono::nanoseconds>(
        result.connect_within, std::chrono::milliseconds(value.launch.timeout_ms));
  }
  return result;
}

/// Of processes that had no fault of their own when others could not meet.
void note_who_met(const std::vector<RankFate>& fates, Run& run) {
  for (std::size_t i = 0; i < fates.size(); ++i) {
    if (fates[i].is_connected) {
      const std::int64_t place = run.ranks[i].rank;
      run.ranks[i] = RankRun();
      run.ranks[i].rank = place;
      run.ranks[i].at_phase = "rendezvous";
    }
  }
}

}  // namespace

ProcessExecutor::ProcessExecutor(const ProcessExecutorOptions& options)
    : options_(options), pool_(options.binary) {
  // The upper limit keeps ten times as many nanoseconds within 64 bits.
  LOCKSTEP_USAGE(options.hang_after_seconds > 0 && options.hang_after_seconds <= 1e6,
                 "hang_after_seconds is {}; it must be above 0 and at most a million",
                 options.hang_after_seconds);
}

Run ProcessExecutor::execute(const Program& program) {
  const Case& value = program.value;
  const std::vector<ProcessSpec> processes = processes_of(value);
  const auto num_processes = static_cast<std::int64_t>(processes.size());
  ProcessCaseOptions options = case_options(options_, value);
  // Workers that are just starting share the machine's cores.
  options.connect_within += std::chrono::seconds(num_processes);
  pool_.prepare(num_processes);
  const std::vector<RankFate> fates =
      ProcessCase(pool_, processes, options).run(text_for_workers(value));
  Run run;
  for (std::int64_t rank = 0; rank < num_processes; ++rank) {
    run.ranks.push_back(record_of(fates, rank));
    name_the_dead(fates, run.ranks.back());
  }
  if (is_failed_launch(run) && value.launch.is_asked_for()) {
    note_who_met(fates, run);
    return run;
  }
  run.mismatch = mismatch_of(fates, run);
  if (value.launch.is_asked_for()) {
    run.ranks = of_first_run(value, std::move(run.ranks));
  }
  return run;
}

std::unique_ptr<Executor> make_process_executor(const ProcessExecutorOptions& options) {
  return std::make_unique<ProcessExecutor>(options);
}

}  // namespace lockstep::harness
