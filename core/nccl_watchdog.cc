// SPDX-License-Identifier: Apache-2.0
// The watchdog: what has ended, what is late, what NCCL reports; and the end of a communicator.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/nccl_flights.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// How often the watchdog looks: a host that waits wants to go on, others only want their tensors.
constexpr microseconds kLookOften{50};
constexpr microseconds kLookSeldom{2'000};
// For peers to finish, and for aborted kernels to end, when a communicator is closed.
constexpr milliseconds kFinalizeMax{5'000};
constexpr milliseconds kDrainMax{10'000};

}  // namespace

CommFailure NcclFlights::late(const NcclFlight& flight) const {
  const bool has_begun = api_.query_event(flight.begun) == kGpuSuccess;
  return {CommFailure::Kind::kTimedOut,
          fmt::format("{}: timed out after {} ms: {}", where(flight), options_.timeout.count(),
                      has_begun ? "some rank has not entered it, or does not answer"
                                : "it has not begun, since kernels launched before it still run")};
}

/// From here on nothing is launched. `culprit`: the flight that `failure` is about; null: none.
/// Precondition: mutex_ is held.
void NcclFlights::fail(const CommFailure& failure, const NcclFlight* culprit) {
  failure_ = failure;
  doomed_ = std::exchange(comm_, nullptr);
  for (const auto& flight : in_flight_) {
    flight->failure = failure;
    if (flight.get() != culprit) {
      flight->failure->message =
          fmt::format("{} was given up: {}", where(*flight), failure.message);
    }
  }
  wake_.notify_one();
  landed_.notify_all();
}

void NcclFlights::watch() {
  api_.set_device(options_.device);
  Lock lock(mutex_);
  std::optional<Clock::time_point> drain_until;
  while (!closing_ || !in_flight_.empty()) {
    poll();
    if (doomed_ != nullptr) {
      free_communicator(lock);
    }
    if (in_flight_.empty()) {
      wake_.wait(lock, [this] { return closing_ || doomed_ != nullptr || !in_flight_.empty(); });
      continue;
    }
    if (closing_ && !drain_until) {
      drain_until = Clock::now() + kDrainMax;
    }
    if (drain_until && Clock::now() > *drain_until) {
      // The GPU may still write into these: they are never freed.
      static_cast<void>(new std::deque<std::shared_ptr<NcclFlight>>(std::move(in_flight_)));
      break;
    }
    wake_.wait_for(lock, num_host_waiters_ > 0 || closing_ ? kLookOften : kLookSeldom);
  }
  free_communicator(lock);
}

/// Precondition: mutex_ is held.
void NcclFlights::poll() {
  while (!in_flight_.empty()) {
    NcclFlight& first = *in_flight_.front();
    const int status = first.ended == nullptr ? kGpuSuccess : api_.query_event(first.ended);
    if (status == kCudaNotReady) {
      break;
    }
    if (status != kGpuSuccess && !failure_) {
      fail(cuda_failure(where(first), status), &first);
    }
    land(first);
    in_flight_.pop_front();
  }
  if (comm_ == nullptr || in_flight_.empty()) {
    return;
  }
  NcclFlight& first = *in_flight_.front();
  int state = kGpuSuccess;
  const int status = api_.async_error(comm_, &state);
  state = status == kGpuSuccess ? state : status;
  if (state != kGpuSuccess && state != kNcclInProgress) {
    fail(nccl_failure(where(first), state), &first);
  } else if (Clock::now() > first.launched + options_.timeout) {
    fail(late(first), &first);
  }
}

/// The GPU is done with it. Precondition: mutex_ is held.
void NcclFlights::land(NcclFlight& flight) {
  for (NcclOperation& operation : flight.operations) {
    if (!flight.failure && operation.on_host && operation.output.defined() &&
        operation.output.nbytes() > 0) {
      std::memcpy(operation.output.data_ptr(), operation.pinned, operation.output.nbytes());
    }
    if (!flight.failure && options_.on_ended) {
      options_.on_ended(operation.what, flight.begun, flight.ended);
    }
    if (operation.pinned != nullptr) {
      pinned_.take_back(operation.pinned, operation.pinned_bytes);
    }
    // Maybe the last references; let them go before anybody is told.
    operation.output.reset();
    operation.input.reset();
  }
  if (flight.begun != nullptr && flight.ended != nullptr) {
    spare_events_.emplace_back(flight.begun, flight.ended);
  }
  flight.is_over = true;
  landed_.notify_all();
}

/// Aborts it if it has failed; otherwise, when closing, waits for the peers as far as NCCL needs
/// them: they may still be reading what this rank has sent.
void NcclFlights::free_communicator(Lock& lock) {
  NcclComm const doomed = std::exchange(doomed_, nullptr);
  NcclComm const idle = closing_ ? std::exchange(comm_, nullptr) : nullptr;
  lock.unlock();
  if (doomed != nullptr) {
    api_.abort(doomed);
  }
  if (idle != nullptr) {
    const auto deadline = Clock::now() + std::min(kFinalizeMax, options_.timeout);
    int state = api_.finalize(idle);
    while (state == kNcclInProgress && Clock::now() < deadline) {
      std::this_thread::sleep_for(kLookOften);
      const int status = api_.async_error(idle, &state);
      state = status == kGpuSuccess ? state : status;
    }
    state == kGpuSuccess ? api_.destroy(idle) : api_.abort(idle);
  }
  lock.lock();
}

void NcclFlights::close() {
  {
    const Lock lock(mutex_);
    if (closing_) {
      return;
    }
    closing_ = true;
    if (!failure_) {
      const CommFailure given_up{CommFailure::Kind::kOther, "the communicator is being destroyed"};
      if (in_flight_.empty()) {
        failure_ = given_up;
      } else {
        fail(given_up, nullptr);
      }
    }
  }
  wake_.notify_one();
  watchdog_.join();
  const ScopedGpu gpu(api_, options_.device);
  for (const auto& [begun, ended] : spare_events_) {
    api_.destroy_event(begun);
    api_.destroy_event(ended);
  }
  spare_events_.clear();
  pinned_.free_all();
  api_.destroy_event(ready_);
  api_.destroy_stream(stream_);
}

}  // namespace lockstep
