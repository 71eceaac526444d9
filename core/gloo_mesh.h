// SPDX-License-Identifier: Apache-2.0
// Gloo's connections between all ranks, whose waits can be ended. Internal to the Gloo transport;
// the only header of ours that shows Gloo's types.
//
// When a connection breaks, Gloo fails the operations that have not begun to move data, but an
// operation that is half done stays asleep until its time limit: a receiver whose sender dies amid
// a broadcast is one. So one more receive per peer is always posted, on a slot of its own; a thread
// waits for it and, when it fails, ends every wait there is. A peer that goes in good order answers
// that receive first, so that those who still work with others are left in peace.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "core/gloo_blame.h"

namespace lockstep {

/// Gloo takes no "for ever"; this much can still be added to a time point.
inline constexpr std::chrono::milliseconds kGlooEndless = std::chrono::hours(24 * 3650);

/// Gloo's transport with a list of the buffers in use.
class InterruptibleTransport final : public gloo::transport::Context {
 public:
  explicit InterruptibleTransport(std::shared_ptr<gloo::transport::Context> inner);

  std::unique_ptr<gloo::transport::Pair>& getPair(int rank) override;
  std::unique_ptr<gloo::transport::Pair>& createPair(int rank) override;
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* memory,
                                                                      std::size_t bytes) override;

  /// Ends every wait in progress, and every later one, with gloo::IoException. From any thread.
  void interrupt();

 private:
  class Buffer;

  const std::shared_ptr<gloo::transport::Context> inner_;
  std::mutex mutex_;
  bool interrupted_ = false;
  std::set<gloo::transport::UnboundBuffer*> in_use_;
};

/// A full mesh of connections.
class GlooMesh final : public gloo::rendezvous::Context {
 public:
  GlooMesh(int rank, int size);
  ~GlooMesh() override;

  /// To be called once, when connected; starts the thread.
  void watch();

  /// Ends every wait at this time, unless it is put off or called off before. Gloo's own time limit
  /// breaks all connections, so that nothing could be said to the peers any more.
  void set_alarm(std::chrono::steady_clock::time_point when) noexcept;
  void clear_alarm() noexcept { set_alarm(std::chrono::steady_clock::time_point::max()); }
  bool alarm_has_rung() const noexcept { return alarm_has_rung_; }

  /// Does not wait; best effort. After kLost every wait of the peers ends.
  void say_goodbye(const Farewell& farewell) noexcept;
  /// What a peer has said. May be called from any thread.
  Farewell farewell_of(int peer) const noexcept;

  /// Breaks every connection and ends every wait. From any thread.
  void close() noexcept;

 private:
  void run_watch();
  void run_alarm();

  std::shared_ptr<gloo::transport::Context> connections_;  ///< Gloo's own
  std::shared_ptr<InterruptibleTransport> interruptible_;
  std::vector<std::uint8_t> farewells_;
  std::unique_ptr<gloo::transport::UnboundBuffer> farewell_buffer_;
  std::atomic<bool> stopping_{false};
  std::thread watcher_;
  // The alarm's thread looks at the clock when the earliest moment has come that it knows of; what
  // is put off is found then, so that setting it costs a store.
  std::atomic<std::int64_t> alarm_ns_{std::numeric_limits<std::int64_t>::max()};
  std::atomic<bool> alarm_has_rung_{false};
  std::mutex alarm_mutex_;
  std::condition_variable alarm_changed_;
  std::int64_t alarm_seen_ns_ = std::numeric_limits<std::int64_t>::max();  ///< under the mutex
  std::thread alarm_;
};

}  // namespace lockstep
