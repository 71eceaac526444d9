// SPDX-License-Identifier: Apache-2.0
// Where a rank is in its training.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::harness {

enum class Phase : std::uint8_t {
  kConstruction,
  kZeroGrad,
  kForward,
  kBackward,
  kSync,
  kUpdate,
  kScript,
  kJoin,
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
  /// A forward of training through the synchronisation has returned.
  void note_forward(std::int64_t step, std::int64_t micro_batch) {
    forward_step_.store(step, std::memory_order_relaxed);
    forward_micro_batch_.store(micro_batch, std::memory_order_relaxed);
  }
  void tick() { progress_.fetch_add(1, std::memory_order_release); }

  Phase phase() const { return phase_.load(std::memory_order_relaxed); }
  std::int64_t step() const { return step_.load(std::memory_order_relaxed); }
  /// Of the last forward that was noted; -1: none.
  std::int64_t forward_step() const { return forward_step_.load(std::memory_order_relaxed); }
  std::int64_t forward_micro_batch() const {
    return forward_micro_batch_.load(std::memory_order_relaxed);
  }
  std::int64_t progress() const { return progress_.load(std::memory_order_acquire); }

 private:
  std::atomic<Phase> phase_{Phase::kConstruction};
  std::atomic<std::int64_t> step_{-1};
  std::atomic<std::int64_t> forward_step_{-1}, forward_micro_batch_{-1};
  std::atomic<std::int64_t> progress_{0};
};

}  // namespace lockstep::harness
