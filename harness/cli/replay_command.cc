// SPDX-License-Identifier: Apache-2.0
// lockstep replay: one case again, with all there is to see.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/check.h"
#include "harness/cli/commands.h"
#include "harness/cli/judging.h"
#include "harness/executor.h"
#include "harness/judge/judge_schedules.h"
#include "harness/program.h"
#include "harness/report/report.h"
#include "harness/report/result_file.h"
#include "harness/report/text_case.h"
#include "harness/report/text_style.h"
#include "harness/scenario.h"
#include "harness/scenario/nearest_name.h"
#include "harness/suite.h"

namespace lockstep::harness::cli {

namespace {

constexpr const char* kReplayFooter =
    "Examples:\n"
    "  lockstep replay scenarios/quickstart/two_ranks.toml --case 3\n"
    "  lockstep replay hang.toml --case 'ranks=2,seed=1' --dot graph.dot && dot -Tsvg graph.dot\n"
    "Exit status: as of `lockstep run`.";

struct ReplayOptions {
  std::string path;
  std::string which;
  JudgingOptions judging;
  Selection selection;
  std::string dot_path;
  bool no_trace = false;
};

/// Case `which`, by name or by number from 1; with one case there is nothing to choose.
/// Errors: UsageError if it says nothing definite.
const NamedCase& chosen_case(const std::vector<NamedCase>& cases, const std::string& which) {
  if (which.empty()) {
    LOCKSTEP_USAGE(cases.size() == 1,
                   "{} stands for {} cases; --case takes a number from 1, or a name such as '{}' "
                   "(`lockstep list` shows all)",
                   cases.front().file, cases.size(), cases.front().name);
    return cases.front();
  }
  const auto by_name = std::find_if(cases.begin(), cases.end(),
                                    [&](const NamedCase& named) { return named.name == which; });
  if (by_name != cases.end()) return *by_name;
  constexpr std::size_t kMaxDigits = 9;
  if (which.size() <= kMaxDigits && which.find_first_not_of("0123456789") == std::string::npos) {
    const std::size_t number = std::stoul(which);
    LOCKSTEP_USAGE(number >= 1 && number <= cases.size(),
                   "there is no case {}; {} has cases 1 to {}", number, cases.front().file,
                   cases.size());
    return cases[number - 1];
  }
  std::vector<std::string> names;
  for (const NamedCase& named : cases) names.push_back(named.name);
  throw UsageError(
      fmt::format("{} has no case '{}'{}", cases.front().file, which, did_you_mean(which, names)));
}

/// What happened, event by event. Simulator only.
std::string trace_of(const Case& value) {
  SimExecutorOptions options;
  options.keep_trace = true;
  return make_sim_executor(options)->execute(compile_subject(value)).trace_text;
}

void write_dot(const std::string& graph, ResultFile& file) {
  if (graph.empty()) {
    fmt::print(stderr, "lockstep: no rank waits for another; there is no graph to write\n");
    return;
  }
  file.out() << graph;
  file.commit();
}

int replay(const ReplayOptions& options) {
  check_judging_options(options.judging);
  ScenarioSet set = load_scenarios({options.path});
  LOCKSTEP_USAGE(!set.cases.empty() || set.studies.empty(),
                 "{} is a timing file, which is predicted and not run; try: lockstep simulate {}",
                 options.path, options.path);
  const std::vector<NamedCase> cases = select_cases(std::move(set.cases), options.selection);
  const NamedCase& named = chosen_case(cases, options.which);
  std::unique_ptr<ResultFile> dot_file;
  if (!options.dot_path.empty()) dot_file = std::make_unique<ResultFile>(options.dot_path);
  ResultFile screen("-");

  prepare_process();
  CaseJudge judge(options.judging);
  const CaseResult result =
      judge_one(named, [&](const NamedCase& one) { return judge.judge(one); });
  CaseTextOptions text_options;
  text_options.colour = wants_colour(STDOUT_FILENO);
  text_options.every_step = true;
  text_options.replay_options = replay_options(options.judging, options.selection);
  screen.out() << describe_case(result, text_options);
  if (options.judging.backend == "sim" && !options.no_trace && !result.skipped) {
    screen.out() << "\nTrace:\n" << trace_of(on_schedule(named.value, result.schedule));
  }
  if (dot_file) write_dot(result.outcome.wait_for_dot, *dot_file);
  screen.commit();
  SuiteSummary summary;
  tally(result, summary);
  return exit_status(summary);
}

}  // namespace

void add_replay_command(CLI::App& app, int& exit_status) {
  CLI::App* command = app.add_subcommand("replay", "Run one case again, with every step and trace");
  command->footer(kReplayFooter);
  const auto options = std::make_shared<ReplayOptions>();
  command->add_option("FILE", options->path, "A scenario file")->required();
  command->add_option("--case", options->which,
                      "Which of the file's cases: its name, or its number from 1");
  command->add_option("--backend", options->judging.backend,
                      "sim (default), gloo, c10d_gloo (PyTorch's own) or nccl");
  command->add_option("--sync", options->selection.sync,
                      "Synchronise this way: ddp, torch, per_parameter, flat or none");
  command->add_option("--against", options->judging.against,
                      "torch: also run it with PyTorch's reducer and compare everything");
  command->add_option("--schedule", options->selection.schedule,
                      "Simulate it on these schedules: round_robin, random:RUNS, pct:DEPTH:RUNS, "
                      "exhaustive:RUNS_MAX or replay:DEVIATIONS");
  command->add_option_function<std::string>(
      "--seed", [options](const std::string& text) { options->selection.seed = parse_seed(text); },
      "Replaces the seed");
  command->add_option("--properties", options->judging.properties,
                      "Relations to other runs that scripts without a mistake are held against; "
                      "-1: all that apply (default 0)");
  command->add_option(
      "--hang-after", options->judging.hang_after_s,
      "Real transports: seconds without progress that make a deadlock (default 10)");
  command->add_option("--dot", options->dot_path,
                      "Write who waits for whom to this file, for Graphviz; - is stdout");
  command->add_flag("--no-trace", options->no_trace, "Leave out the simulator's trace");
  command->callback([options, &exit_status] { exit_status = replay(*options); });
}

}  // namespace lockstep::harness::cli
