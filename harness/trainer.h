// SPDX-License-Identifier: Apache-2.0
// The one training loop: every subject and every reference runs it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/error.h"
#include "harness/dataset.h"
#include "harness/graph_model.h"
#include "harness/optimizer.h"
#include "harness/program.h"
#include "harness/run.h"
#include "harness/sync/gradient_sync.h"

namespace lockstep::harness {

/// Thrown by a scripted `raise`.
class ScriptError : public Error {
 public:
  using Error::Error;
};

enum class Phase : std::uint8_t {
  kConstruction,
  kZeroGrad,
  kForward,
  kBackward,
  kSync,
  kUpdate,
  kScript,
  kDone
};
const char* to_string(Phase phase);

/// Where a rank is; written by its own thread, readable from any.
class Position {
 public:
  void enter(Phase phase) {
    phase_.store(phase, std::memory_order_relaxed);
    progress_.fetch_add(1, std::memory_order_release);
  }
  void enter_step(std::int64_t step) { step_.store(step, std::memory_order_relaxed); }
  void set_blocks_run(const std::vector<bool>& blocks_run);
  std::vector<bool> blocks_run() const;
  void tick() { progress_.fetch_add(1, std::memory_order_release); }

  Phase phase() const { return phase_.load(std::memory_order_relaxed); }
  std::int64_t step() const { return step_.load(std::memory_order_relaxed); }
  std::int64_t progress() const { return progress_.load(std::memory_order_acquire); }

 private:
  std::atomic<Phase> phase_{Phase::kConstruction};
  std::atomic<std::int64_t> step_{-1};
  std::atomic<std::int64_t> progress_{0};
  mutable std::mutex mutex_;
  std::vector<bool> blocks_run_;
};

/// One copy of the model and the rank whose part it plays.
struct Replica {
  const RankProgram* program = nullptr;
  std::shared_ptr<GraphModel> model;
};

/// Everything a loop needs; references outlive it.
struct TrainerParts {
  const Program& program;
  const Dataset& data;
  std::vector<Replica> replicas;  ///< updated together: the optimizer steps the first one's
  GradientSync& sync;
  Optimizer& optimizer;
  Communicator* communicator = nullptr;        ///< scripted collectives; null in references
  std::function<void(std::int64_t)> sleep_ns;  ///< scripted pauses
  Observer* observer = nullptr;
  Position& position;
};

/// Steps first <= step < end.
struct StepRange {
  std::int64_t first = 0;
  std::int64_t end = std::numeric_limits<std::int64_t>::max();
};

/// Trains to the end of the range or program (kFinished), until the script leaves the loop (kLeft),
/// or until something is thrown. A program may be trained range after range, with the same parts or
/// with others.
///
/// `records` gets one RankRun per replica, filled as steps complete, so that what was done before
/// an error is there. Replicas after the first record losses and buffers only.
/// Errors: ScriptError; what DDP, LibTorch and the communicator throw.
Ending train(const TrainerParts& parts, std::vector<RankRun>& records, StepRange range = {});

}  // namespace lockstep::harness
