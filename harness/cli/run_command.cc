// SPDX-License-Identifier: Apache-2.0
// lockstep run: are all cases as expected?
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/check.h"
#include "harness/cli/commands.h"
#include "harness/cli/judging.h"
#include "harness/cli/validators.h"
#include "harness/report/json_report.h"
#include "harness/report/junit_report.h"
#include "harness/report/progress.h"
#include "harness/report/result_file.h"
#include "harness/report/text_report.h"
#include "harness/report/text_style.h"
#include "harness/scenario.h"
#include "harness/suite.h"
#include "harness/timing/predict.h"
#include "harness/wall_clock.h"

namespace lockstep::harness::cli {

namespace {

constexpr const char* kRunFooter =
    "Examples:\n"
    "  lockstep run scenarios/quickstart\n"
    "  lockstep run scenarios --jobs 4 --json results.json --junit results.xml\n"
    "  lockstep run scenarios/deadlock --backend gloo --filter 'ranks=2' -v\n"
    "  lockstep run scenarios --against torch\n"
    "Exit status: 0 every case as expected; 1 some case not; 2 wrong usage or an invalid "
    "scenario,\n"
    "nothing was run; 3 a defect of Lockstep itself; 128 + N ended by signal N.";

struct RunOptions {
  std::vector<std::string> paths;
  JudgingOptions judging;
  Selection selection;
  std::optional<std::int64_t> jobs;
  SuiteOptions suite;
  std::string junit_path, json_path;
  bool verbose = false;
};

/// What is judged: cases in child processes, then studies in this one.
struct Chosen {
  std::vector<NamedCase> cases;
  std::vector<TimingStudy> studies;
};

/// The cases to run. An empty shard is fine, a filter that fits nothing is a mistake. Predictions
/// are the same on every transport, so they are left to the simulator.
Chosen chosen(const RunOptions& options) {
  ScenarioSet set = load_scenarios(options.paths);
  const std::size_t num_loaded = set.cases.size() + set.studies.size();
  Selection filter = options.selection;
  filter.shard = filter.num_shards = 1;
  std::vector<NamedCase> cases = select_cases(std::move(set.cases), filter);
  std::vector<TimingStudy> studies;
  if (options.judging.backend == "sim") {
    studies = select_studies(std::move(set.studies), filter, 0);
  }
  LOCKSTEP_USAGE(!cases.empty() || !studies.empty(),
                 "no case matches --filter '{}' ({} loaded; `lockstep list` shows "
                 "what they are called)",
                 filter.filter, num_loaded);
  Selection shard;
  shard.shard = options.selection.shard;
  shard.num_shards = options.selection.num_shards;
  const std::size_t num_cases = cases.size();
  return {select_cases(std::move(cases), shard),
          select_studies(std::move(studies), shard, num_cases)};
}

/// The reports of one run and what they are written to.
class Reports {
 public:
  /// Opens all files. Errors: UsageError if one cannot be written.
  explicit Reports(const RunOptions& options) {
    LOCKSTEP_USAGE(options.json_path.empty() || options.json_path != options.junit_path,
                   "--json and --junit cannot both write to '{}'", options.json_path);
    if (!options.json_path.empty()) {
      files_.push_back(std::make_unique<ResultFile>(options.json_path));
      reports_.push_back(make_json_report(files_.back()->out()));
    }
    if (!options.junit_path.empty()) {
      files_.push_back(std::make_unique<ResultFile>(options.junit_path));
      reports_.push_back(make_junit_report(files_.back()->out()));
    }
    // People read what no program has asked for.
    const bool taken = options.json_path == "-" || options.junit_path == "-";
    const int fd = taken ? STDERR_FILENO : STDOUT_FILENO;
    if (!taken) files_.push_back(std::make_unique<ResultFile>("-"));
    std::ostream& text = taken ? std::cerr : files_.back()->out();
    reports_.push_back(make_text_report(text, {options.verbose, wants_colour(fd)}));
  }

  void begin(const SuiteInfo& info) {
    for (const auto& report : reports_) report->begin(info);
  }
  void case_done(const CaseResult& result) {
    for (const auto& report : reports_) report->case_done(result);
  }
  /// Errors: UsageError if not all could be written.
  void end(const SuiteSummary& summary) {
    for (const auto& report : reports_) report->end(summary);
    for (const auto& file : files_) file->commit();
  }

 private:
  std::vector<std::unique_ptr<ResultFile>> files_;
  std::vector<std::unique_ptr<Report>> reports_;
};

/// Judges studies behind the cases of a suite that was not ended early.
void judge_studies(const std::vector<TimingStudy>& studies, const SuiteOptions& options,
                   const SuiteEvents& events, SuiteSummary& summary) {
  const double start_s = wall_seconds();
  summary.num_cases += static_cast<std::int64_t>(studies.size());
  for (const TimingStudy& study : studies) {
    if (summary.signal != 0 || summary.stopped_at_failure) break;
    const CaseResult result =
        judge_one({study.file, "", {}}, [&](const NamedCase&) { return judge_study(study); });
    tally(result, summary);
    events.case_done(result);
    events.progress(summary.num_done());
    summary.stopped_at_failure =
        options.fail_fast && summary.failed > 0 && summary.num_done() < summary.num_cases;
  }
  summary.seconds += wall_seconds() - start_s;
}

int run(RunOptions& options) {
  check_judging_options(options.judging);
  LOCKSTEP_USAGE(options.judging.against.empty() || options.selection.sync.empty(),
                 "--against {} compares what each case says with {}; leave out --sync",
                 options.judging.against, options.judging.against);
  const auto [cases, studies] = chosen(options);
  Reports reports(options);

  // Ranks of a real run are processes themselves and keep the processors busy.
  options.suite.jobs =
      options.jobs.value_or(options.judging.backend == "sim" ? available_cores() : 1);
  options.suite.process_start = prepare_process;
  const auto judge = std::make_shared<CaseJudge>(options.judging);
  options.suite.process_end = [judge] { judge->end(); };

  SuiteInfo info;
  info.num_cases = static_cast<std::int64_t>(cases.size() + studies.size());
  info.backend = options.judging.backend;
  info.replay_options = replay_options(options.judging, options.selection);
  Progress progress(info.num_cases);
  SuiteEvents events;
  events.progress = [&](std::int64_t num_done) { progress.update(num_done); };
  events.case_done = [&](const CaseResult& result) {
    progress.clear();
    reports.case_done(result);
  };
  reports.begin(info);
  SuiteSummary summary = run_suite(
      cases, options.suite, [judge](const NamedCase& named) { return judge->judge(named); },
      events);
  judge_studies(studies, options.suite, events, summary);
  progress.clear();
  reports.end(summary);
  return exit_status(summary);
}

void add_options(CLI::App& command, RunOptions& options) {
  command.add_option("PATH", options.paths, "Scenario files, or folders of them");
  command.add_option("--backend", options.judging.backend,
                     "sim (default), gloo, c10d_gloo (PyTorch's own) or nccl");
  command.add_option("--sync", options.selection.sync,
                     "Synchronise all cases this way: ddp, torch, per_parameter, flat or none");
  command.add_option("--against", options.judging.against,
                     "torch: also run every case with PyTorch's reducer and compare everything");
  command.add_option("--schedule", options.selection.schedule,
                     "Simulate all cases on these schedules: round_robin, random:RUNS, "
                     "pct:DEPTH:RUNS, exhaustive:RUNS_MAX or replay:DEVIATIONS");
  command.add_option("--filter", options.selection.filter,
                     "Only cases whose 'FILE [NAME]' contains this regular expression");
  command.add_option_function<std::string>(
      "--seed", [&](const std::string& text) { options.selection.seed = parse_seed(text); },
      "Replaces the seed of every case; cases that differ by seed only run once");
  command
      .add_option("--jobs", options.jobs,
                  "Cases at a time (default: one per processor; 1 with a real transport)")
      ->check(CLI::Range(1, 1024));
  command.add_option_function<std::string>(
      "--shard", [&](const std::string& text) { parse_shard(text, options.selection); },
      "I/N: every Nth case, from the Ith on");
  command.add_option("--junit", options.junit_path, "Write JUnit XML to this file; - is stdout");
  command.add_option("--json", options.json_path, "Write JSON to this file; - is stdout");
  command.add_option("--properties", options.judging.properties,
                     "Relations to other runs that scripts without a mistake are held against; "
                     "-1: all that apply (default 0)");
  command.add_option("--hang-after", options.judging.hang_after_s,
                     "Real transports: seconds without progress that make a deadlock (default 10)");
  command
      .add_option(
          "--case-timeout", options.suite.case_timeout_s,
          "Seconds that a case may take before it counts as a defect: of processor time, or "
          "standing still, as it does over real transports (default 120)")
      ->check(above_zero());
  command.add_flag("--fail-fast", options.suite.fail_fast,
                   "Stop at the first case not as expected");
  command.add_flag("--in-process", options.suite.in_process,
                   "For debuggers: judge in this process, without isolation or time limit");
  command.add_flag("-v,--verbose", options.verbose, "A line per case");
}

}  // namespace

void add_run_command(CLI::App& app, int& exit_status) {
  CLI::App* command = app.add_subcommand("run", "Judge scenario files or folders of them");
  command->footer(kRunFooter);
  const auto options = std::make_shared<RunOptions>();
  add_options(*command, *options);
  command->callback([command, options, &exit_status] {
    if (options->paths.empty()) {
      fmt::print(stderr, "lockstep run: which scenarios?\n\n{}", command->help());
      exit_status = kWrongUsage;
      return;
    }
    exit_status = run(*options);
  });
}

}  // namespace lockstep::harness::cli
