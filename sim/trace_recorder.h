// SPDX-License-Identifier: Apache-2.0
// Writes the event log of a run and hashes it on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "sim/trace.h"
#include "sim/virtual_clock.h"
#include "sim/world.h"

// The state of xxHash's streaming XXH3, which only the .cc knows.
struct XXH3_state_s;

namespace lockstep::sim {

/// One per world. Threads: whoever has the turn.
class TraceRecorder {
 public:
  /// `clock` stamps the entries and outlives this object.
  TraceRecorder(const VirtualClock& clock, bool keep_entries);
  ~TraceRecorder();

  void record(std::int64_t rank, const Event& event);

  /// An event about a collective; index: its seq. What the collective is goes into the hash too,
  /// and `data_hash`, the hash of its result, where it has one.
  void record(std::int64_t rank, EventKind kind, const CollectiveInfo& info,
              std::uint64_t data_hash = 0);

  /// Hash of `num_bytes` bytes at `bytes`, for `data_hash`.
  static std::uint64_t hash_bytes(const void* bytes, std::size_t num_bytes);

  /// The log so far with its hash; the entries move out.
  Trace take();

 private:
  struct FreeState {
    void operator()(XXH3_state_s* state) const;
  };

  void append(std::int64_t rank, const Event& event, const CollectiveInfo* info);

  const VirtualClock& clock_;
  bool keep_entries_;
  std::unique_ptr<XXH3_state_s, FreeState> state_;
  Trace trace_;
};

}  // namespace lockstep::sim
