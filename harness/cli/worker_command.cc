// SPDX-License-Identifier: Apache-2.0
// lockstep worker: not for people; executors start it.
#include <CLI/CLI.hpp>
#include <memory>

#include "harness/cli/commands.h"
#include "harness/execute/worker.h"

namespace lockstep::harness::cli {

void add_worker_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("worker", "One rank's process");
  command->group("");  // not listed
  const auto options = std::make_shared<WorkerOptions>();
  constexpr int kFirstFreeFd = 3;
  command->add_option("--socket", options->socket_fd, "Connection to the executor")
      ->required()
      ->check(CLI::Range(kFirstFreeFd, 1 << 20));
  command->add_option("--directory", options->directory, "Removed once the executor is gone")
      ->required();
  command->callback([options] { serve_as_worker(*options); });
}

}  // namespace lockstep::harness::cli
