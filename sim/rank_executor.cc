// SPDX-License-Identifier: Apache-2.0
// Threads and hand-over of the simulated ranks.
#include "sim/rank_executor.h"

#include <ATen/Parallel.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <utility>

namespace lockstep::sim {

RankExecutor::RankExecutor() : process_(::getpid()) {}

RankExecutor::~RankExecutor() {
  stopping_ = true;
  for (const auto& worker : workers_) {
    worker->gate.open();
    worker->thread.join();
  }
}

RankExecutor& RankExecutor::of_this_thread() {
  thread_local std::unique_ptr<RankExecutor> executor;
  // The threads of an inherited executor do not exist in a forked child; it can neither be used
  // nor destroyed there, so it is left as it is, and kept reachable.
  static RankExecutor* abandoned = nullptr;
  if (executor && executor->process_ != ::getpid()) {
    abandoned = executor.release();
  }
  static_cast<void>(abandoned);
  if (!executor) {
    executor = std::make_unique<RankExecutor>();
  }
  return *executor;
}

void RankExecutor::prepare(std::int64_t num_ranks, Task task) {
  task_ = std::move(task);
  while (static_cast<std::int64_t>(workers_.size()) < num_ranks) {
    const auto rank = static_cast<std::int64_t>(workers_.size());
    workers_.push_back(std::make_unique<Worker>());
    // The thread gets its gate by reference: `workers_` may grow until its first turn.
    Gate& gate = workers_.back()->gate;
    try {
      workers_.back()->thread = std::thread([this, rank, &gate] { serve(rank, gate); });
    } catch (...) {
      workers_.pop_back();
      throw;
    }
  }
  pin_workers(num_ranks);
}

void RankExecutor::pin_workers(std::int64_t num_ranks) {
  const int core = ::sched_getcpu();
  if (core < 0) {
    return;
  }
  cpu_set_t only_core;
  CPU_ZERO(&only_core);
  CPU_SET(core, &only_core);
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    Worker& worker = *workers_[static_cast<std::size_t>(rank)];
    // Failure costs speed only.
    if (worker.core != core && ::pthread_setaffinity_np(worker.thread.native_handle(),
                                                        sizeof(only_core), &only_core) == 0) {
      worker.core = core;
    }
  }
}

void RankExecutor::run(std::int64_t rank) {
  gate_of(rank).open();
  controller_gate_.pass();
}

void RankExecutor::hand_over(std::int64_t from, std::int64_t to) {
  gate_of(to).open();
  gate_of(from).pass();
}

void RankExecutor::serve(std::int64_t rank, Gate& gate) {
  bool first = true;
  while (true) {
    gate.pass();
    if (stopping_) {
      return;
    }
    if (std::exchange(first, false)) {
      at::init_num_threads();
    }
    const std::int64_t to = task_(rank);
    gate_of(to).open();
  }
}

Gate& RankExecutor::gate_of(std::int64_t rank) {
  return rank == kController ? controller_gate_ : workers_[static_cast<std::size_t>(rank)]->gate;
}

}  // namespace lockstep::sim
