// SPDX-License-Identifier: Apache-2.0
// One case in progress in worker processes, from the first order to the last record.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/rendezvous.h"
#include "harness/case.h"
#include "harness/execute/watch.h"
#include "harness/execute/worker_pool.h"
#include "harness/execute/worker_protocol.h"
#include "harness/run.h"

namespace lockstep::harness {

struct ProcessCaseOptions {
  WatchOptions watch;
  std::chrono::nanoseconds connect_within{std::chrono::seconds(30)};
  /// How long workers get to let go of a case that is over.
  std::chrono::nanoseconds close_within{std::chrono::seconds(2)};
  std::string transport = "gloo";  ///< see CaseOrder
  /// Longest wait of a rank for its peers in a collective; 0: longer than the watch waits.
  std::int64_t transfer_timeout_ms = 0;
  LaunchSpec launch;  ///< of which hosts and processes are not looked at here
};

/// What is known of one rank when nobody can or will move any more.
struct RankFate {
  bool is_connected = false;
  std::int64_t step = -1;            ///< the last one that it began
  std::optional<RankEnded> ended;    ///< its body ended
  std::optional<ProcessEnd> died;    ///< its process ended
  bool was_asked = false;            ///< where it is
  std::optional<Whereabouts> where;  ///< its last answer

  bool is_live() const { return !ended && !died; }
};

/// Drives workers of a pool, one per process, through one case.
class ProcessCase {
 public:
  /// `pool` outlives this. Precondition: the pool is prepared for so many processes.
  ProcessCase(WorkerPool& pool, std::vector<ProcessSpec> processes,
              const ProcessCaseOptions& options);

  /// Returns once every rank has ended, died, or stands still for ever; then no worker of this case
  /// is busy with it any more, and those that could not be freed are ended.
  /// Errors: InvariantError for workers that report one or cannot be understood.
  std::vector<RankFate> run(const std::string& case_toml);

 private:
  using Time = std::chrono::nanoseconds;

  void open_stores();
  std::string token_of(const ProcessSpec& process) const;
  void send_orders(const std::string& case_toml);
  void meet();
  void watch();
  void close();
  void ask_all(std::int64_t round);
  bool receive(Time until);
  void drain(std::int64_t rank);
  void handle(std::int64_t rank, const Message& message);
  void note_death(std::int64_t rank);
  bool any_live() const;
  static Time now();

  WorkerPool& pool_;
  ProcessCaseOptions options_;
  std::vector<ProcessSpec> processes_;
  std::map<std::string, RendezvousDirectory> stores_;  ///< by name
  std::vector<RankFate> ranks_;
  std::vector<bool> is_closed_;
  std::optional<Watch> watch_;
};

}  // namespace lockstep::harness
