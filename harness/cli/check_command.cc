// SPDX-License-Identifier: Apache-2.0
// lockstep check: are these files valid?
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "harness/cli/commands.h"
#include "harness/scenario.h"

namespace lockstep::harness::cli {

void add_check_command(CLI::App& app, int& exit_status) {
  CLI::App* command = app.add_subcommand("check", "Parse and validate scenario files only");
  command->footer("Example: lockstep check scenarios");
  const auto paths = std::make_shared<std::vector<std::string>>();
  command->add_option("PATH", *paths, "Scenario files, or folders of them")->required();
  command->callback([paths, &exit_status] {
    const ScenarioSet set = load_scenarios(*paths);
    const std::size_t num_cases = set.cases.size() + set.studies.size();
    fmt::print("{} {}, {} {}: ok\n", set.num_files, set.num_files == 1 ? "file" : "files",
               num_cases, num_cases == 1 ? "case" : "cases");
    exit_status = kAllAsExpected;
  });
}

}  // namespace lockstep::harness::cli
