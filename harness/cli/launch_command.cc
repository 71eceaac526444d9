// SPDX-License-Identifier: Apache-2.0
// `lockstep launch`: N ranks of any program on this machine.
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/rendezvous.h"
#include "harness/cli/commands.h"

namespace lockstep::harness::cli {
namespace {

constexpr const char* kFooter =
    "Every process gets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR,\n"
    "MASTER_PORT and TORCHELASTIC_RUN_ID as torchrun sets them, and LOCKSTEP_DIRECTORY and\n"
    "LOCKSTEP_TOKEN for lockstep::GlooOptions. When one fails, the others are ended.\n"
    "Example: lockstep launch -n 4 ./train --epochs 3\n"
    "Exit status: that of the first process that failed, 128 + signal if it was killed; else 0.";

constexpr int kCannotExecute = 127;
constexpr int kSignalBase = 128;
constexpr int kGraceSeconds = 5;

struct LaunchCommand {
  std::int64_t num_ranks = 0;
  std::int64_t port = 0;
  std::string interface = "127.0.0.1";
  std::vector<std::string> program;
};

using Variables = std::map<std::string, std::string>;

/// The child's side of fork; this program has one thread, so that anything may be done here.
[[noreturn]] void become(const std::vector<std::string>& program, const Variables& variables,
                         const sigset_t& mask) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // if the launcher is killed
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  for (const auto& [name, value] : variables) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  std::vector<std::string> words = program;
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  fmt::print(stderr, "lockstep: cannot execute '{}': {}\n", program.front(), std::strerror(errno));
  ::_exit(kCannotExecute);
}

/// The processes of a launch that still run.
class Ranks {
 public:
  void start(const LaunchCommand& command, const Variables& common, const sigset_t& mask) {
    for (std::int64_t rank = 0; rank < command.num_ranks; ++rank) {
      Variables variables = common;
      variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
      const pid_t pid = ::fork();
      if (pid == 0) {
        become(command.program, variables, mask);
      }
      if (pid < 0) {
        const int cause = errno;
        signal_all(SIGKILL);
        throw UsageError(fmt::format("rank {} could not be started: {}; those before it were ended",
                                     rank, std::strerror(cause)));
      }
      running_[pid] = rank;
    }
  }

  bool empty() const { return running_.empty(); }
  void signal_all(int number) const {
    for (const auto& [pid, rank] : running_) {
      ::kill(pid, number);
    }
  }

  /// Takes note of those that have ended. Result: the exit status of the first that failed.
  /// Those that end after that were told to, and are not reported.
  std::optional<int> reap() {
    std::optional<int> failure;
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto ended = running_.find(pid);
      if (ended == running_.end()) {
        continue;
      }
      const int code = WIFSIGNALED(status) ? kSignalBase + WTERMSIG(status) : WEXITSTATUS(status);
      if (code != 0 && !has_failed_) {
        has_failed_ = true;
        failure = code;
        fmt::print(stderr, "lockstep: rank {} (process {}) {}\n", ended->second, pid,
                   WIFSIGNALED(status)
                       ? fmt::format("was ended by signal {} ({})", WTERMSIG(status),
                                     ::strsignal(WTERMSIG(status)))
                       : fmt::format("exited with status {}", code));
      }
      running_.erase(ended);
    }
    return failure;
  }

 private:
  std::map<pid_t, std::int64_t> running_;  ///< process -> rank
  bool has_failed_ = false;                ///< some process has
};

/// Until all have ended. The first failure, or a signal to this process, ends the others: by
/// SIGTERM, and by SIGKILL when they have had time to go.
int await(Ranks& ranks, const sigset_t& signals) {
  int exit_status = 0;
  bool ending = false;
  while (!ranks.empty()) {
    const timespec grace{kGraceSeconds, 0};
    const int number =
        ending ? ::sigtimedwait(&signals, nullptr, &grace) : ::sigwaitinfo(&signals, nullptr);
    const std::optional<int> failure = ranks.reap();
    const bool told_to_end = number > 0 && number != SIGCHLD;
    if (ending && number < 0 && errno == EAGAIN) {
      ranks.signal_all(SIGKILL);
    } else if (!ending && (failure || told_to_end)) {
      ending = true;
      exit_status = failure ? *failure : kSignalBase + number;
      ranks.signal_all(SIGTERM);
    }
  }
  return exit_status;
}

int launch(const LaunchCommand& command) {
  const ListenAddress master = choose_listen_address(this_host(), command.interface, command.port);
  const RendezvousDirectory directory = RendezvousDirectory::create();
  const std::string world_size = std::to_string(command.num_ranks);
  const Variables common = {
      {"WORLD_SIZE", world_size},
      {"LOCAL_WORLD_SIZE", world_size},
      {"GROUP_RANK", "0"},
      {"MASTER_ADDR", master.address},
      {"MASTER_PORT",
       std::to_string(command.port != 0 ? command.port : find_free_port(master.address))},
      {"TORCHELASTIC_RUN_ID", directory.token()},
      {"LOCKSTEP_DIRECTORY", directory.path()},
      {"LOCKSTEP_TOKEN", directory.token()}};
  sigset_t signals, before;
  sigemptyset(&signals);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) {
    sigaddset(&signals, number);
  }
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  Ranks ranks;
  ranks.start(command, common, before);
  return await(ranks, signals);
}

}  // namespace

void add_launch_command(CLI::App& app, int& exit_status) {
  CLI::App* command =
      app.add_subcommand("launch", "Start N ranks of a program, with torchrun's variables");
  command->footer(kFooter);
  command->positionals_at_end();
  const auto options = std::make_shared<LaunchCommand>();
  command->add_option("-n,--nproc-per-node", options->num_ranks, "Number of ranks")
      ->required()
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--master-port", options->port,
                   "MASTER_PORT, which must be free (default: one that is)")
      ->check(CLI::Range(0, 65535));
  command->add_option("--interface", options->interface,
                      "MASTER_ADDR: an interface, a pattern such as ^lo, or an address of this "
                      "machine (default 127.0.0.1)");
  command->add_option("PROGRAM", options->program, "The program and its arguments")->required();
  command->prefix_command();
  command->callback([command, options, &exit_status] {
    // Of "-- PROGRAM ...", all of it is the program's; the option parser hands the "--" on as well.
    std::vector<std::string> others = command->remaining();
    if (others == std::vector<std::string>{"--"}) {
      others.clear();
    }
    options->program.insert(options->program.end(), others.begin(), others.end());
    exit_status = launch(*options);
  });
}

}  // namespace lockstep::harness::cli
