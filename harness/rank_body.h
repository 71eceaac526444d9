// SPDX-License-Identifier: Apache-2.0
// One rank of a subject, wherever it runs: builds the model, wraps it, trains, records.
#pragma once

#include <cstdint>
#include <memory>

#include "harness/program.h"
#include "harness/rank_services.h"
#include "harness/run.h"

namespace lockstep::harness {

/// A rank in progress. `run` is called once, on the rank's own thread.
class RankBody {
 public:
  RankBody(const Program& program, std::int64_t rank, RankServices services);
  ~RankBody();

  /// Trains to the end. What the script or DDP throws is caught and kept in the record (kFailed);
  /// errors of the simulator's unwinding and InvariantError pass through.
  void run();

  /// What there is so far: after `run`, everything. While the rank is parked or stuck in a
  /// collective it may be called from another thread; it then holds no step records, only where the
  /// rank is (at_step, at_phase, never_ready without reasons, counters) and what it has issued.
  /// Never waits for communication.
  RankRun position() const;

  /// The complete record; after `run` has returned or thrown.
  RankRun take_record();

  /// Grows with every sign of life; may be read from any thread.
  std::int64_t progress() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::harness
