// SPDX-License-Identifier: Apache-2.0
// Runs a program's ranks in processes of their own, over a real transport.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "harness/execute/watch.h"
#include "harness/execute/worker_pool.h"
#include "harness/executor.h"

namespace lockstep::harness {

struct ProcessExecutorOptions {
  /// Real time without progress of any rank after which a run is taken to stand still; > 0.
  double hang_after_seconds = 10.0;
  /// Must understand `worker --socket FD --directory DIR` (see serve_as_worker).
  std::string binary = "/proc/self/exe";
  /// "gloo", "nccl": ours; "c10d_gloo": PyTorch's own Gloo process group. See has_transport.
  std::string transport = "gloo";
};

// Note [How real ranks end]
// finished, left, failed: by the rank's own record. A rank that has ended keeps its connections
//   until all have, so that its peers wait for it as they would with any transport.
// waiting: the run stood still (see Watch) while the rank was in a collective. `waiting_for` lists
//   the ranks that had not issued it, and those that had died.
// waiting, but `waiting` empty: the run stood still and the rank was in no collective. error_kind
// is
//   "still_computing", "unresponsive" where its process did not even answer, or "cut_short" where
//   another rank died before all had met.
// crashed: its process ended, by `signal` or, where that is 0, by itself; error_kind says "signal"
// or
//   "exit", error_message gives the status.

/// Keeps its workers for the next case; whichever are of no use afterwards are replaced.
///
/// Determinism: records hold nothing of wall clock, process ids or ports.
/// Threads: one at a time. A worker that is stopped (SIGSTOP) outlives the parent if the thread
/// that
///          first needed it has ended before.
/// Errors:  InvariantError if processes cannot be made or do not behave as workers.
class ProcessExecutor final : public Executor {
 public:
  explicit ProcessExecutor(const ProcessExecutorOptions& options = {});

  Run execute(const Program& program) override;
  /// No: workers compile the case that they are handed.
  bool takes_changed_programs() const override { return false; }

  /// The processes and the private directory, for those who look after them.
  const WorkerPool& pool() const { return pool_; }

 private:
  ProcessExecutorOptions options_;
  WorkerPool pool_;
};

std::unique_ptr<Executor> make_process_executor(const ProcessExecutorOptions& options = {});

}  // namespace lockstep::harness
