// SPDX-License-Identifier: Apache-2.0
// Many cases: which of them, in how many processes, and what becomes of them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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

/// A case as it travels to a child process, which reads it as it would a file.
struct CaseText {
  std::string file, name;
  std::string text;  ///< see print_case
};

using JudgeFunction = std::function<CaseResult(const NamedCase&)>;

/// `judge`, with the time it took, and with whatever it throws as an `internal_error`.
CaseResult judge_one(const NamedCase& named, const JudgeFunction& judge);

/// The result of a case that could not be judged.
CaseResult undecided(const NamedCase& named, const std::string& internal_error);

struct SuiteOptions {
  std::int64_t jobs = 1;
  /// Judges in this process: for debuggers. No isolation, no time limit, signals end the program.
  bool in_process = false;
  bool fail_fast = false;  ///< stops after the first case, in order, that is not as expected
  /// What one case may take: of processor time, or of real time while its process stands still.
  /// That is real time with ranks that are processes of their own.
  double case_timeout_s = 120.0;
  /// Called once in every process that judges, before its first case and after its last, unless it
  /// is killed; may be empty.
  std::function<void()> process_start, process_end;
};

/// All but the first may be empty.
struct SuiteEvents {
  /// In the order of the cases, each as soon as it and all before it are done.
  std::function<void(const CaseResult&)> case_done;
  /// After each case, in whatever order they end.
  std::function<void(std::int64_t num_done)> progress;
  /// Before a child gets its case. Of all cases in progress each has another slot, below `jobs`;
  /// a slot is free again when its case is done.
  std::function<void(std::int64_t slot, const CaseText&)> case_begins;
  /// Whether cases that come later, in order, are of no interest any more. Asked as results
  /// arrive, so it depends on the result alone.
  std::function<bool(const CaseResult&)> ends_at;
};

/// Where cases come from, one after the other.
class CaseSource {
 public:
  virtual ~CaseSource() = default;
  /// The next case. Nothing: there is none before something in progress is done, and none at all
  /// if nothing is in progress.
  virtual std::optional<NamedCase> next() = 0;
};

/// The cases of a list, which outlives it.
class ListedCases final : public CaseSource {
 public:
  explicit ListedCases(const std::vector<NamedCase>& cases) : cases_(cases) {}
  std::optional<NamedCase> next() override;

 private:
  const std::vector<NamedCase>& cases_;
  std::size_t num_given_ = 0;
};

class SuiteChildren;

/// Judges cases in `jobs` child processes, each of which takes one case at a time and lives on from
/// one call of `run` to the next.
///
/// A case whose process dies or exceeds the time limit comes out with an `internal_error` (and, if
/// it died of a signal, as kCrash); the others are not touched by it. So does one whose judge
/// throws. SIGINT, SIGTERM or SIGHUP ends all children; no child survives this or the calling
/// process.
///
/// Processes: to be made before the calling process has used LibTorch, whose threads do not survive
/// a fork; it does not use LibTorch itself, unless `in_process`.
class Suite {
 public:
  /// Errors: UsageError for options that make no sense.
  Suite(const SuiteOptions& options, const JudgeFunction& judge);
  ~Suite();
  Suite(const Suite&) = delete;
  Suite& operator=(const Suite&) = delete;

  /// Judges what the source gives. A signal, also one that has come between two calls, makes this
  /// and every later call return with what is done; `signal` is set.
  /// Errors: Error if no process can be started; what events and source throw passes through.
  SuiteSummary run(CaseSource& source, const SuiteEvents& events);

 private:
  const SuiteOptions options_;
  const JudgeFunction judge_;
  std::unique_ptr<SuiteChildren> children_;
};

/// One call of Suite::run for a list, with children that end with it.
SuiteSummary run_suite(const std::vector<NamedCase>& cases, const SuiteOptions& options,
                       const JudgeFunction& judge, const SuiteEvents& events);

/// Processors this process may run on.
std::int64_t available_cores();

}  // namespace lockstep::harness
