// SPDX-License-Identifier: Apache-2.0
// Worker processes that are kept between cases, since LibTorch takes half a second to start.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/execute/worker_process.h"

namespace lockstep::harness {

/// Grows to the largest world that was asked for. Owns a private directory (mode 0700) for what the
/// ranks exchange, which is only there while some worker is: should this process be killed, they
/// remove it. The destructor ends all workers.
///
/// Forks: a pool belongs to the process that first called `prepare`. A copy of an unused pool is a
///        pool of its own; a copy of a used one can only be destroyed, which leaves everything be.
class WorkerPool {
 public:
  /// `binary`: see WorkerCommand. Starts nothing.
  explicit WorkerPool(const std::string& binary);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  /// Makes sure that workers 0 to `num_workers` - 1 are there and idle.
  /// Errors: InvariantError if a process or the directory cannot be made, or in another process.
  void prepare(std::int64_t num_workers);

  /// Precondition: prepared, and not discarded since.
  WorkerProcess& worker(std::int64_t index);

  /// Ends worker `index`; the next `prepare` replaces it.
  ProcessEnd discard(std::int64_t index);

  /// Of all workers that there are.
  std::vector<pid_t> pids() const;
  /// Empty before the first `prepare`.
  const std::string& directory() const { return command_.directory; }

 private:
  void drop(std::size_t index);

  WorkerCommand command_;
  bool has_directory_ = false;
  pid_t owner_ = -1;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
};

}  // namespace lockstep::harness
