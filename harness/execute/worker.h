// SPDX-License-Identifier: Apache-2.0
// The other side of a worker process: takes case after case and runs one rank of each.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "harness/program.h"
#include "harness/rank_body.h"
#include "harness/run.h"

namespace lockstep::harness {

/// What a worker runs: RankBody, or what a test plants in its place. See RankBody for the meaning
/// of each function.
class WorkerBody {
 public:
  virtual ~WorkerBody() = default;
  virtual void run() = 0;
  virtual RankRun position() const = 0;
  virtual RankRun take_record() = 0;
  virtual std::int64_t progress() const = 0;
};

/// The real thing: a RankBody. `program` outlives it.
std::unique_ptr<WorkerBody> make_rank_body(const Program& program, std::int64_t rank,
                                           RankServices services);

struct WorkerOptions {
  int socket_fd = -1;     ///< one end of a socket pair; the parent holds the other
  std::string directory;  ///< removed, with all in it, once the parent is gone
  /// Makes the body of one rank of one case; null: make_rank_body.
  std::function<std::unique_ptr<WorkerBody>(const Program&, std::int64_t rank, RankServices)>
      make_body;
  /// Called before the rank meets its peers; null: nothing.
  std::function<void(const Case&, std::int64_t rank)> before_connect;
};

/// Serves cases until the parent is gone, then removes the directory and ends the process.
/// Threads: the body runs on the calling thread; a second one listens to the parent.
[[noreturn]] void serve_as_worker(WorkerOptions options);

}  // namespace lockstep::harness
