// SPDX-License-Identifier: Apache-2.0
// Streams, events and the watchdog; see Note [A collective on the GPU].
#include "core/nccl_flights.h"

#include <cstdint>
#include <cstring>
#include <tuple>

#include "core/check.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

bool any_on_gpu(const NcclFlight& flight) {
  for (const NcclOperation& operation : flight.operations) {
    if (!operation.on_host) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined() || a.nbytes() == 0 || b.nbytes() == 0) {
    return false;
  }
  const auto* const first = static_cast<const std::uint8_t*>(a.data_ptr());
  const auto* const second = static_cast<const std::uint8_t*>(b.data_ptr());
  return first < second + b.nbytes() && second < first + a.nbytes();
}

NcclFlights::NcclFlights(const NcclApi& api, NcclComm comm, NcclFlightsOptions options)
    : api_(api), options_(std::move(options)), comm_(comm), pinned_(api) {
  const ScopedGpu gpu(api_, options_.device);
  int status = api_.create_stream(&stream_);
  if (status == kGpuSuccess) {
    status = api_.create_event(&ready_, /*timed=*/false);
  }
  if (status != kGpuSuccess) {
    api_.abort(comm_);
    throw_failure(cuda_failure(fmt::format("rank {}: making a stream", options_.rank), status));
  }
  watchdog_ = std::thread([this] { watch(); });
}

NcclFlights::~NcclFlights() { close(); }

std::string NcclFlights::where(const NcclFlight& flight) const {
  std::string text =
      fmt::format("rank {}: {}", options_.rank, describe(flight.operations.front().what));
  if (flight.operations.size() > 1) {
    text += fmt::format(" and {} more of its group", flight.operations.size() - 1);
  }
  return text;
}

CommFailure NcclFlights::cuda_failure(const std::string& doing, int status) const {
  return {CommFailure::Kind::kOther,
          fmt::format("{}: CUDA error {}: {}", doing, status, api_.cuda_text(status))};
}

CommFailure NcclFlights::nccl_failure(const std::string& doing, int status) const {
  const bool is_remote = status == kNcclRemoteError || status == kNcclSystemError;
  return {is_remote ? CommFailure::Kind::kPeerLost : CommFailure::Kind::kOther,
          fmt::format("{}: NCCL error {}: {}", doing, status, api_.nccl_text(status, comm_))};
}

int NcclFlights::take_events(NcclFlight& flight) {
  if (!spare_events_.empty()) {
    std::tie(flight.begun, flight.ended) = spare_events_.back();
    spare_events_.pop_back();
    return kGpuSuccess;
  }
  const bool timed = options_.on_ended != nullptr;
  const int status = api_.create_event(&flight.begun, timed);
  return status == kGpuSuccess ? api_.create_event(&flight.ended, timed) : status;
}

/// Takes the input into pinned memory, if it is in the host's.
int NcclFlights::stage(NcclOperation& operation) {
  if (!operation.on_host) {
    return kGpuSuccess;
  }
  const bool has_tensor = operation.output.defined();
  operation.pinned_bytes = has_tensor ? operation.output.nbytes() : 1;
  int status = kGpuSuccess;
  operation.pinned = pinned_.lend(operation.pinned_bytes, status);
  if (status != kGpuSuccess) {
    operation.pinned = nullptr;
    return status;
  }
  auto* const pinned = static_cast<std::uint8_t*>(operation.pinned);
  if (!has_tensor) {
    *pinned = 0;
  } else if (operation.input.defined()) {
    const std::size_t row_bytes = operation.input.nbytes();
    std::memcpy(pinned + static_cast<std::size_t>(options_.rank) * row_bytes,
                operation.input.data_ptr(), row_bytes);
  } else if (operation.output.nbytes() > 0) {
    std::memcpy(pinned, operation.output.data_ptr(), operation.output.nbytes());
  }
  return kGpuSuccess;
}

/// Hands one operation to NCCL, within a group.
int NcclFlights::issue(const NcclOperation& operation) {
  if (operation.count == 0) {
    return kGpuSuccess;
  }
  void* const out = operation.on_host ? operation.pinned : operation.output.data_ptr();
  switch (operation.what.kind) {
    case CollectiveKind::kAllReduce:
    case CollectiveKind::kBarrier:
      return api_.all_reduce(out, out, operation.count, operation.type,
                             operation.what.op == ReduceOp::kSum ? NcclOp::kSum : NcclOp::kMax,
                             comm_, stream_);
    case CollectiveKind::kBroadcast:
      return api_.broadcast(out, out, operation.count, operation.type,
                            static_cast<int>(operation.what.root), comm_, stream_);
    case CollectiveKind::kAllGather:
      break;
  }
  const void* const in =
      operation.on_host ? static_cast<std::uint8_t*>(out) +
                              static_cast<std::size_t>(options_.rank) * operation.input.nbytes()
                        : operation.input.data_ptr();
  return api_.all_gather(in, out, operation.count, operation.type, comm_, stream_);
}

/// NCCL may still be at work on the host; events must not be recorded before it is done.
std::optional<CommFailure> NcclFlights::settle(const NcclFlight& flight, int status) {
  while (status == kNcclInProgress) {
    if (Clock::now() > flight.launched + options_.timeout) {
      return CommFailure{CommFailure::Kind::kTimedOut,
                         fmt::format("{}: NCCL did not launch it within {} ms", where(flight),
                                     options_.timeout.count())};
    }
    std::this_thread::yield();
    int state = kGpuSuccess;
    status = api_.async_error(comm_, &state);
    status = status == kGpuSuccess ? state : status;
  }
  if (status != kGpuSuccess) {
    return nccl_failure(where(flight), status);
  }
  return std::nullopt;
}

std::optional<CommFailure> NcclFlights::enqueue(NcclFlight& flight) {
  int status = take_events(flight);
  for (NcclOperation& operation : flight.operations) {
    status = status == kGpuSuccess ? stage(operation) : status;
  }
  if (status == kGpuSuccess && any_on_gpu(flight)) {
    status = api_.record_event(ready_, api_.current_stream(options_.device));
    status = status == kGpuSuccess ? api_.stream_wait_event(stream_, ready_) : status;
  }
  status = status == kGpuSuccess ? api_.record_event(flight.begun, stream_) : status;
  if (status != kGpuSuccess) {
    return cuda_failure(where(flight), status);
  }
  status = api_.group_start();
  if (status != kGpuSuccess) {
    return nccl_failure(where(flight), status);
  }
  for (const NcclOperation& operation : flight.operations) {
    // Within a group a call is noted down only, so being in progress says nothing yet.
    status = status == kGpuSuccess || status == kNcclInProgress ? issue(operation) : status;
  }
  const bool refused = status != kGpuSuccess && status != kNcclInProgress;
  const int end_status = api_.group_end();
  return settle(flight, refused ? status : end_status);
}

std::optional<CollectiveDescription> NcclFlights::writer_of(const at::Tensor& tensor) {
  const Lock lock(mutex_);
  for (const auto& flight : in_flight_) {
    for (const NcclOperation& operation : flight->operations) {
      if (operation.on_host && overlap(operation.output, tensor)) {
        return operation.what;
      }
    }
  }
  return std::nullopt;
}

void NcclFlights::launch(const std::shared_ptr<NcclFlight>& flight) {
  {
    const Lock lock(mutex_);
    flight->is_launched = true;
    flight->launched = Clock::now();
    if (failure_) {
      flight->failure = failure_;
      flight->failure->message =
          fmt::format("{} was not begun: {}", where(*flight), failure_->message);
      return;
    }
    const ScopedGpu gpu(api_, options_.device);
    const std::optional<CommFailure> failure = enqueue(*flight);
    // Also after a failure: some of it may be on its way.
    const int marked =
        flight->ended != nullptr ? api_.record_event(flight->ended, stream_) : kGpuSuccess;
    in_flight_.push_back(flight);
    if (failure || marked != kGpuSuccess) {
      fail(failure ? *failure : cuda_failure(where(*flight), marked), flight.get());
    }
  }
  wake_.notify_one();
}

void NcclFlights::wait(const NcclFlight& flight, bool on_host) {
  Lock lock(mutex_);
  LOCKSTEP_USAGE(flight.is_launched,
                 "{} is waited for within its group, which is launched when that ends",
                 where(flight));
  if (on_host) {
    ++num_host_waiters_;
    wake_.notify_one();
    landed_.wait(lock, [&flight] { return flight.is_over || flight.failure; });
    --num_host_waiters_;
  }
  if (flight.failure) {
    throw_failure(*flight.failure);
  }
  if (flight.is_over) {
    return;
  }
  const int status = api_.stream_wait_event(api_.current_stream(options_.device), flight.ended);
  if (status != kGpuSuccess) {
    throw_failure(cuda_failure(fmt::format("{}: waiting for it", where(flight)), status));
  }
}

}  // namespace lockstep
