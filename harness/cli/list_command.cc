// SPDX-License-Identifier: Apache-2.0
// lockstep list: which cases do these files stand for?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "harness/cli/commands.h"
#include "harness/scenario.h"

namespace lockstep::harness::cli {

namespace {

struct ListOptions {
  std::vector<std::string> paths;
  bool toml = false;
};

void list(const ListOptions& options) {
  const ScenarioSet set = load_scenarios(options.paths);
  for (const NamedCase& named : set.cases) {
    const std::string line =
        named.name.empty() ? named.file : fmt::format("{} [{}]", named.file, named.name);
    if (options.toml) {
      fmt::print("# {}\n{}\n", line, print_case(named.value));
    } else {
      fmt::print("{}\n", line);
    }
  }
  for (const TimingStudy& study : set.studies) {
    fmt::print("{}{}\n", options.toml ? "# a timing file is a case as it stands: " : "",
               study.file);
  }
}

}  // namespace

void add_list_command(CLI::App& app, int& exit_status) {
  CLI::App* command = app.add_subcommand("list", "The cases that scenario files stand for");
  command->footer("Example: lockstep list scenarios/quickstart");
  const auto options = std::make_shared<ListOptions>();
  command->add_option("PATH", options->paths, "Scenario files, or folders of them")->required();
  command->add_flag("--toml", options->toml, "Print each case as a scenario file of its own");
  command->callback([options, &exit_status] {
    list(*options);
    exit_status = kAllAsExpected;
  });
}

}  // namespace lockstep::harness::cli
