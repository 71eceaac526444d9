// SPDX-License-Identifier: Apache-2.0
// One case in progress in worker processes, from the first order to the last record.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/rendezvous.h"
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

/// Drives workers 0 to world_size - 1 of a pool through one case.
class ProcessCase {
 public:
  /// `pool` outlives this. Precondition: the pool is prepared.
  ProcessCase(WorkerPool& pool, std::int64_t world_size, const ProcessCaseOptions& options);

  /// Returns once every rank has ended, died, or stands still for ever; then no worker of this case
  /// is busy with it any more, and those that could not be freed are ended.
  /// Errors: InvariantError for workers that report one or cannot be understood.
  std::vector<RankFate> run(const std::string& case_toml);

 private:
  using Time = std::chrono::nanoseconds;

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
  RendezvousDirectory rendezvous_;
  std::vector<RankFate> ranks_;
  std::vector<bool> is_closed_;
  std::optional<Watch> watch_;
};

}  // namespace lockstep::harness
