// SPDX-License-Identifier: Apache-2.0
// What core tells the outside while it works; the one event vocabulary of the project.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

enum class EventKind : std::uint8_t {
  // Told by core.
  kForward,         ///< a forward through the wrapper begins; index: 1 if its backward will sync
  kBuffersSynced,   ///< buffers were broadcast
  kRebuilt,         ///< buckets were rebuilt; index: number of buckets
  kGradientReady,   ///< a parameter was marked ready; index: parameter
  kUnusedMarked,    ///< a parameter was marked ready because it is unused; index: parameter
  kBucketLaunched,  ///< index: bucket
  kFinalized,       ///< a reduction was finalized
  // Told by transports that keep a trace.
  kPosted,     ///< a collective was issued; index: its seq on this rank
  kCompleted,  ///< a collective ended on this rank; index: its seq
  kWaitBegin,  ///< index: seq
  kWaitEnd,    ///< index: seq
  // Told by the training loop.
  kStepBegin,  ///< index: step
  kStepEnd,    ///< index: step
  kScript,     ///< a scripted event took place; index: its position in the scenario
  // Told by the simulator about a rank.
  kRankStarted,
  kRankEnded,  ///< index: 0 finished, 1 failed, 2 cancelled
  kResumed,    ///< the scheduler let this rank run
};

/// "gradient_ready", "bucket_launched", ...
std::string_view to_string(EventKind kind);

struct Event {
  EventKind kind = EventKind::kForward;
  std::int64_t index = -1;
};

/// Receives events in the order in which they happen on one rank.
/// Threads: called on the rank's own thread, inside forward and backward; must not throw, block or
///          call back into the object that reports.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_event(const Event& event) = 0;
};

}  // namespace lockstep
