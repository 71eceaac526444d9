// SPDX-License-Identifier: Apache-2.0
// The `lockstep` command: picks a subcommand and turns errors into exit statuses.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/error.h"
#include "harness/cli/commands.h"
#include "harness/scenario.h"
#include "harness/scenario/nearest_name.h"

namespace lockstep::harness::cli {

namespace {

constexpr const char* kExample =
    "Example: lockstep new my_case && lockstep run my_case.toml && lockstep replay my_case.toml\n"
    "Exit status: 0 every case as expected; 1 some case not; 2 wrong usage or an invalid "
    "scenario;\n"
    "3 a defect of Lockstep itself.";

/// What is wrong with the first argument, if it looks like a subcommand and is none.
std::string subcommand_error(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return {};
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(command->get_name());
    if (names.back() == argv[1]) return {};
  }
  return fmt::format("unknown command '{}'; expected one of {}{}", argv[1], fmt::join(names, ", "),
                     did_you_mean(argv[1], names));
}

/// What is wrong with an argument that looks like an option of its subcommand and is none.
std::string option_error(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() != argv[1]) continue;
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string name = argument.substr(0, argument.find('='));
    const bool is_known = std::find(names.begin(), names.end(), name) != names.end();
    if (name.size() > 2 && name.rfind("--", 0) == 0 && !is_known) {
      return fmt::format("unknown option '{}' of `lockstep {}`{}", name, argv[1],
                         did_you_mean(name, names));
    }
  }
  return {};
}

/// Errors: UsageError if something that was printed did not arrive.
void end_output() {
  LOCKSTEP_USAGE(std::fflush(stdout) == 0 && std::ferror(stdout) == 0,
                 "cannot write to the standard output: {}", std::strerror(errno));
}

int run(CLI::App& app, int argc, char** argv, const int& exit_status) {
  try {
    app.parse(argc, argv);
    end_output();
    return exit_status;
  } catch (const CLI::ParseError& error) {
    // --help and --version come this way, with status 0.
    if (error.get_exit_code() == 0) return app.exit(error);
    std::string wrong = subcommand_error(app, argc, argv);
    const bool has_command = wrong.empty() && argc > 1 && argv[1][0] != '-';
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && has_command) {
      wrong = option_error(app, argc, argv);
    }
    fmt::print(stderr, "lockstep: {}\nRun `lockstep {}--help` for how to use it.\n",
               wrong.empty() ? error.what() : wrong, has_command ? argv[1] + std::string(" ") : "");
    return kWrongUsage;
  } catch (const ScenarioError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return kWrongUsage;
  } catch (const UsageError& error) {
    fmt::print(stderr, "lockstep: {}\n", error.what());
    return kWrongUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep: internal error, please report it: {}\n", error.what());
    return kDefect;
  }
}

int main_function(int argc, char** argv) {
  CLI::App app(
      "Runs scripted trainings under a data-parallel implementation and under one process, and "
      "compares them after every step.",
      "lockstep");
#if CLI11_VERSION_MAJOR > 2 || (CLI11_VERSION_MAJOR == 2 && CLI11_VERSION_MINOR >= 5)
  app.get_formatter()->enable_footer_formatting(false);  // it would join the lines of examples
#endif
  app.footer(kExample);
  app.require_subcommand(1);
  int exit_status = kAllAsExpected;
  add_check_command(app, exit_status);
  add_list_command(app, exit_status);
  add_new_command(app, exit_status);
  add_run_command(app, exit_status);
  add_replay_command(app, exit_status);
  add_simulate_command(app, exit_status);
  add_launch_command(app, exit_status);
  add_audit_command(app, exit_status);
#ifdef LOCKSTEP_WITH_FUZZ
  add_fuzz_command(app, exit_status);
#endif
  add_worker_command(app);
  if (argc < 2) {
    fmt::print(stderr, "{}", app.help());
    return kWrongUsage;
  }
  return run(app, argc, argv, exit_status);
}

}  // namespace

}  // namespace lockstep::harness::cli

int main(int argc, char** argv) { return lockstep::harness::cli::main_function(argc, argv); }
