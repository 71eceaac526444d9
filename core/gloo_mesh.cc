// SPDX-License-Identifier: Apache-2.0
// Buffers that can be interrupted, and the thread that does it.
#include "core/gloo_mesh.h"

#include <gloo/common/error.h>

#include <chrono>
#include <exception>
#include <utility>

#include "core/gloo_signals.h"

namespace lockstep {
namespace {

// Gloo builds its slots as a collective's prefix (1 to 8) in the top byte and the tag below.
constexpr std::uint64_t kFarewellSlot = std::uint64_t{0x6e} << 56;

}  // namespace

/// Hands everything on to Gloo's buffer.
class InterruptibleTransport::Buffer final : public gloo::transport::UnboundBuffer {
 public:
  Buffer(InterruptibleTransport& transport, std::unique_ptr<gloo::transport::UnboundBuffer> inner)
      : gloo::transport::UnboundBuffer(inner->ptr, inner->size),
        transport_(transport),
        inner_(std::move(inner)) {
    const std::lock_guard<std::mutex> lock(transport_.mutex_);
    transport_.in_use_.insert(inner_.get());
    if (transport_.interrupted_) {
      inner_->abortWaitRecv();
      inner_->abortWaitSend();
    }
  }
  ~Buffer() override {
    const std::lock_guard<std::mutex> lock(transport_.mutex_);
    transport_.in_use_.erase(inner_.get());
  }

  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override {
    return demand(inner_->waitRecv(rank, timeout));
  }
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override {
    return demand(inner_->waitSend(rank, timeout));
  }
  void abortWaitRecv() override { inner_->abortWaitRecv(); }
  void abortWaitSend() override { inner_->abortWaitSend(); }
  void send(int rank, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    inner_->send(rank, slot, offset, bytes);
  }
  void recv(int rank, std::uint64_t slot, std::size_t offset, std::size_t bytes) override {
    inner_->recv(rank, slot, offset, bytes);
  }
  void recv(std::vector<int> ranks, std::uint64_t slot, std::size_t offset,
            std::size_t bytes) override {
    inner_->recv(std::move(ranks), slot, offset, bytes);
  }

 private:
  // Gloo's collectives do not look at the result of a wait.
  static bool demand(bool completed) {
    if (!completed) {
      throw gloo::IoException("interrupted");
    }
    return true;
  }

  InterruptibleTransport& transport_;
  std::unique_ptr<gloo::transport::UnboundBuffer> inner_;
};

InterruptibleTransport::InterruptibleTransport(std::shared_ptr<gloo::transport::Context> inner)
    : gloo::transport::Context(inner->rank, inner->size), inner_(std::move(inner)) {}

std::unique_ptr<gloo::transport::Pair>& InterruptibleTransport::getPair(int peer) {
  return inner_->getPair(peer);
}

std::unique_ptr<gloo::transport::Pair>& InterruptibleTransport::createPair(int peer) {
  return inner_->createPair(peer);
}

std::unique_ptr<gloo::transport::UnboundBuffer> InterruptibleTransport::createUnboundBuffer(
    void* memory, std::size_t bytes) {
  return std::make_unique<Buffer>(*this, inner_->createUnboundBuffer(memory, bytes));
}

void InterruptibleTransport::interrupt() {
  const std::lock_guard<std::mutex> lock(mutex_);
  interrupted_ = true;
  for (gloo::transport::UnboundBuffer* buffer : in_use_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

GlooMesh::GlooMesh(int this_rank, int world_size)
    : gloo::rendezvous::Context(this_rank, world_size),
      farewells_(static_cast<std::size_t>(world_size)) {}

GlooMesh::~GlooMesh() {
  if (watcher_.joinable()) {
    stopping_ = true;
    farewell_buffer_->abortWaitRecv();
    watcher_.join();
    { const std::lock_guard<std::mutex> lock(alarm_mutex_); }
    alarm_changed_.notify_one();
    alarm_.join();
  }
}

void GlooMesh::watch() {
  connections_ = transportContext_;
  interruptible_ = std::make_shared<InterruptibleTransport>(connections_);
  transportContext_ = interruptible_;
  farewell_buffer_ = connections_->createUnboundBuffer(farewells_.data(), farewells_.size());
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) {
      farewell_buffer_->recv(peer, kFarewellSlot, static_cast<std::size_t>(peer), 1);
    }
  }
  const ScopedSignalBlock block;
  watcher_ = std::thread([this] { run_watch(); });
  alarm_ = std::thread([this] { run_alarm(); });
}

void GlooMesh::set_alarm(std::chrono::steady_clock::time_point when) noexcept {
  const std::int64_t when_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count();
  alarm_ns_ = when_ns;
  bool is_earlier = false;
  if (when != std::chrono::steady_clock::time_point::max()) {
    const std::lock_guard<std::mutex> lock(alarm_mutex_);
    is_earlier = when_ns < alarm_seen_ns_;
  }
  if (is_earlier) {
    alarm_changed_.notify_one();
  }
}

void GlooMesh::run_alarm() {
  std::unique_lock<std::mutex> lock(alarm_mutex_);
  while (!stopping_ && !alarm_has_rung_) {
    alarm_seen_ns_ = alarm_ns_;
    if (alarm_seen_ns_ == std::numeric_limits<std::int64_t>::max()) {
      alarm_changed_.wait(lock);
      continue;
    }
    const std::chrono::steady_clock::time_point seen{std::chrono::nanoseconds(alarm_seen_ns_)};
    alarm_changed_.wait_until(lock, seen);
    if (alarm_ns_ <= std::chrono::steady_clock::now().time_since_epoch().count()) {
      alarm_has_rung_ = true;
      interruptible_->interrupt();
    }
  }
}

void GlooMesh::run_watch() {
  try {
    while (!stopping_) {
      int peer = -1;
      if (farewell_buffer_->waitRecv(&peer, kGlooEndless) &&
          farewell_of(peer).kind == Farewell::Kind::kLost) {
        interruptible_->interrupt();
      }
    }
  } catch (const std::exception&) {
    interruptible_->interrupt();
  }
}

// Written by the kernel on behalf of Gloo's event thread, which sanitizers take for a race.
__attribute__((no_sanitize("thread"))) Farewell GlooMesh::farewell_of(int peer) const noexcept {
  return decode_farewell(
      __atomic_load_n(&farewells_[static_cast<std::size_t>(peer)], __ATOMIC_ACQUIRE));
}

void GlooMesh::say_goodbye(const Farewell& farewell) noexcept {
  const ScopedSignalBlock block;
  std::uint8_t goodbye = encode_farewell(farewell);
  const auto buffer = connections_->createUnboundBuffer(&goodbye, sizeof(goodbye));
  for (int peer = 0; peer < size; ++peer) {
    try {
      if (peer != rank) {
        buffer->send(peer, kFarewellSlot, 0, sizeof(goodbye));
      }
    } catch (const std::exception&) {
      // That peer has gone before.
    }
  }
}

void GlooMesh::close() noexcept {
  interruptible_->interrupt();
  // When a wait on a buffer times out, Gloo breaks every connection of the context.
  try {
    std::uint8_t nothing = 0;
    connections_->createUnboundBuffer(&nothing, sizeof(nothing))
        ->waitRecv(nullptr, std::chrono::milliseconds(1));
  } catch (const std::exception&) {
  }
}

}  // namespace lockstep
