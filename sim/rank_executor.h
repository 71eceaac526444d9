// SPDX-License-Identifier: Apache-2.0
// A thread per rank, exactly one of which runs at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "sim/gate.h"

namespace lockstep::sim {

/// Threads that hand one turn around, and the controller (the thread that owns the executor).
///
/// Whoever has the turn runs; all others sleep on their gates, so that whatever they share needs no
/// lock. Threads are kept between runs, since making them costs more than a short world.
class RankExecutor {
 public:
  static constexpr std::int64_t kController = -1;

  /// What a rank does with its first turn. Returns who gets the turn when it has ended; the thread
  /// touches nothing of the caller's afterwards.
  using Task = std::function<std::int64_t(std::int64_t rank)>;

  RankExecutor();
  ~RankExecutor();
  RankExecutor(const RankExecutor&) = delete;
  RankExecutor& operator=(const RankExecutor&) = delete;

  /// The calling thread's executor; it ends with the thread. After a fork the child gets a new one.
  static RankExecutor& of_this_thread();

  /// Makes ready to run `task` on ranks 0 to num_ranks - 1, all on the core the caller runs on: a
  /// hand-over within one core costs a fifth of one between cores.
  /// Threads: controller, between runs.
  void prepare(std::int64_t num_ranks, Task task);

  /// Gives the turn to `rank` and returns when somebody gives it back to the controller.
  void run(std::int64_t rank);

  /// Gives the turn to `to` (a rank or kController) and returns when `from` gets it back.
  /// Threads: the thread of `from`, which has the turn.
  void hand_over(std::int64_t from, std::int64_t to);

 private:
  struct Worker {
    Gate gate;
    std::thread thread;
    int core = -1;  ///< -1: not pinned
  };

  void serve(std::int64_t rank, Gate& gate);
  Gate& gate_of(std::int64_t rank);
  void pin_workers(std::int64_t num_ranks);

  pid_t process_;
  Gate controller_gate_;
  std::vector<std::unique_ptr<Worker>> workers_;
  Task task_;
  bool stopping_ = false;
};

}  // namespace lockstep::sim
