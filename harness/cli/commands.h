// SPDX-License-Identifier: Apache-2.0
// The subcommands of `lockstep`, one function and one file each.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace lockstep::harness::cli {

// Exit statuses.
inline constexpr int kAllAsExpected = 0;
inline constexpr int kNotAsExpected = 1;  ///< some case came out otherwise
inline constexpr int kWrongUsage = 2;     ///< or an invalid scenario
inline constexpr int kDefect = 3;         ///< of Lockstep itself

// Each adds its subcommand. What a command does runs while arguments are parsed; it writes its
// status to `exit_status`, which outlives `app`. Errors: UsageError, InvariantError.
void add_check_command(CLI::App& app, int& exit_status);
void add_list_command(CLI::App& app, int& exit_status);
void add_new_command(CLI::App& app, int& exit_status);
void add_run_command(CLI::App& app, int& exit_status);
void add_replay_command(CLI::App& app, int& exit_status);
void add_simulate_command(CLI::App& app, int& exit_status);
void add_launch_command(CLI::App& app, int& exit_status);
void add_audit_command(CLI::App& app, int& exit_status);

#ifdef LOCKSTEP_WITH_FUZZ
void add_fuzz_command(CLI::App& app, int& exit_status);
#endif

/// The command never returns.
void add_worker_command(CLI::App& app);

}  // namespace lockstep::harness::cli
