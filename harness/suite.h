// SPDX-License-Identifier: Apache-2.0
// Many cases: which of them, in how many processes, and what becomes of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/outcome.h"
#include "harness/report/report.h"
#include "harness/timing/study.h"

namespace lockstep::harness {

/// Which cases of the loaded files run, and with what changed.
struct Selection {
  std::string filter;  ///< a regular expression found in "FILE [NAME]"; empty: all
  std::int64_t shard = 1, num_shards = 1;  ///< case i of those left runs in shard i mod n + 1
  std::optional<std::uint64_t> seed;       ///< replaces the seed of every case
  /// Replaces [ddp] sync of every case; "torch" only where it is "ddp". Empty: as it is.
  std::string sync;
  /// Replaces [schedule] of every case: "POLICY", "random:RUNS", "pct:DEPTH:RUNS",
  /// "exhaustive:RUNS_MAX", "replay:DEVIATIONS". Empty: as it is.
  std::string schedule;
};

/// Applies the replacements, then the filter, then the shard; keeps the order. With a seed given,
/// cases that differed by nothing but their seed are one case.
/// Errors: UsageError for a broken expression, shard, sync or schedule, and for a case that
/// contradicts itself after a replacement.
std::vector<NamedCase> select_cases(std::vector<NamedCase> cases, const Selection& selection);

/// The same for timing files, which come after `num_cases` cases: seed, filter and shard. What is
/// said of sync and schedule does not concern them.
/// Errors: UsageError for a broken expression or shard.
std::vector<TimingStudy> select_studies(std::vector<TimingStudy> studies,
                                        const Selection& selection, std::size_t num_cases);

using JudgeFunction = std::function<CaseResult(const NamedCase&)>;

/// `judge`, with the time it took, and with whatever it throws as an `internal_error`.
CaseResult judge_one(const NamedCase& named, const JudgeFunction& judge);

/// The result of a case that could not be judged.
CaseResult undecided(const NamedCase& named, const std::string& internal_error);

struct SuiteOptions {
  std::int64_t jobs = 1;
  /// Judges in this process: for debuggers. No isolation, no time limit, signals end the program.
  bool in_process = false;
  bool fail_fast = false;         ///< stops after the first case, in order, that is not as expected
  double case_timeout_s = 120.0;  ///< real time that one case may take
  /// Called once in every process that judges, before its first case and after its last, unless it
  /// is killed; may be empty.
  std::function<void()> process_start, process_end;
};

struct SuiteEvents {
  /// In the order of the cases, each as soon as it and all before it are done.
  std::function<void(const CaseResult&)> case_done;
  /// After each case, in whatever order they end; may be empty.
  std::function<void(std::int64_t num_done)> progress;
};

/// Judges the cases in `jobs` child processes, each of which takes one case at a time.
///
/// A case whose process dies or exceeds the time limit comes out with an `internal_error` (and, if
/// it died of a signal, as kCrash); the others are not touched by it. So does one whose judge
/// throws. SIGINT, SIGTERM or SIGHUP ends all children and returns what is done, with
/// `signal` set. No child survives this call or the calling process.
///
/// Processes: to be called before the calling process has used LibTorch, whose threads do not
/// survive a fork; it does not use LibTorch itself, unless `in_process`.
/// Errors: Error if no process can be started; what `case_done` throws passes through.
SuiteSummary run_suite(const std::vector<NamedCase>& cases, const SuiteOptions& options,
                       const JudgeFunction& judge, const SuiteEvents& events);

/// Processors this process may run on.
std::int64_t available_cores();

}  // namespace lockstep::harness
