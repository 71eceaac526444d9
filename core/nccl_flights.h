// SPDX-License-Identifier: Apache-2.0
// Collectives between their launch and their end on the GPU. Internal to the NCCL transport.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/collective_description.h"
#include "core/comm_failure.h"
#include "core/nccl_api.h"
#include "core/pinned_memory.h"

namespace lockstep {

// Note [A collective on the GPU]
//
//   caller's stream   ...gradient kernels | ready               | (waits for ended) | copy-out ...
//   side stream              (waits for ready) | begun | collective | ended
//
// Nothing here makes the host wait for the GPU: `launch` and `wait` only put events and waits into
// streams, and the GPU sees to the order. (`launch` does wait until NCCL's own thread, which makes
// a communicator that never blocks, has put the collective into the stream.) A watchdog thread asks
// now and then whether `ended` has come to pass. When it has, the tensors are let go; when it has
// not in time, or when NCCL reports an error, the communicator is aborted, which ends the kernels
// that wait for other ranks, and with them whatever the caller's stream had been told to wait for.
//
// Tensors in host memory travel through pinned memory, which NCCL can use as it is: copied there at
// launch, and back by the watchdog. Whoever waits for one of them, or for a barrier, waits on the
// host, because it is the host that goes on.

/// A collective and what it works on.
struct NcclOperation {
  CollectiveDescription what;
  at::Tensor output, input;  ///< kept until the end; input: all_gather only
  NcclType type = NcclType::kUint8;
  std::size_t count = 0;  ///< elements of `type` that this rank puts in
  bool on_host = false;   ///< through pinned memory; also a barrier
  void* pinned = nullptr;
  std::size_t pinned_bytes = 0;
};

/// What is launched and ends together: one operation, or a group.
struct NcclFlight {
  std::vector<NcclOperation> operations;
  CudaEvent begun = nullptr, ended = nullptr;
  std::chrono::steady_clock::time_point launched;
  bool is_launched = false;
  bool is_over = false;  ///< ended on the GPU, results in place
  std::optional<CommFailure> failure;
};

/// Called on the watchdog's thread when a collective has ended well.
using NcclTimesHook =
    std::function<void(const CollectiveDescription& what, CudaEvent begun, CudaEvent ended)>;

/// True if two dense tensors share memory.
bool overlap(const at::Tensor& a, const at::Tensor& b);

struct NcclFlightsOptions {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  int device = 0;
  std::chrono::milliseconds timeout{60'000};
  NcclTimesHook on_ended;  ///< null: nobody asks for times, so events are not timed
};

/// The flights of one communicator, in order, and the thread that watches them.
class NcclFlights {
 public:
  /// Takes over `comm`. `api` outlives this. Errors: CommError if CUDA gives no stream.
  NcclFlights(const NcclApi& api, NcclComm comm, NcclFlightsOptions options);
  /// As `close`.
  ~NcclFlights();

  /// The next position in this rank's sequence.
  std::int64_t next_seq() { return num_posted_++; }

  /// The collective in flight, if any, that will write into the host's memory of `tensor`.
  std::optional<CollectiveDescription> writer_of(const at::Tensor& tensor);

  /// Puts a flight into the side stream. What goes wrong is in its `failure`.
  void launch(const std::shared_ptr<NcclFlight>& flight);

  /// Makes the caller's stream wait for the end; with `on_host`, the calling thread.
  /// Errors: CommError; the same again if asked again.
  void wait(const NcclFlight& flight, bool on_host);

  /// Gives up what is in flight, frees the communicator and ends the thread. May be called again.
  void close();

 private:
  using Lock = std::unique_lock<std::mutex>;

  int take_events(NcclFlight& flight);
  int stage(NcclOperation& operation);
  int issue(const NcclOperation& operation);
  std::optional<CommFailure> settle(const NcclFlight& flight, int status);
  std::optional<CommFailure> enqueue(NcclFlight& flight);
  void watch();
  void poll();
  void land(NcclFlight& flight);
  void fail(const CommFailure& failure, const NcclFlight* culprit);
  void free_communicator(Lock& lock);
  std::string where(const NcclFlight& flight) const;
  CommFailure late(const NcclFlight& flight) const;
  CommFailure nccl_failure(const std::string& doing, int status) const;
  CommFailure cuda_failure(const std::string& doing, int status) const;

  const NcclApi& api_;
  const NcclFlightsOptions options_;
  std::int64_t num_posted_ = 0;  ///< the launching thread's

  std::mutex mutex_;  ///< guards all that follows
  std::condition_variable wake_, landed_;
  NcclComm comm_;              ///< null once it was aborted
  NcclComm doomed_ = nullptr;  ///< to be aborted by the watchdog
  CudaStream stream_ = nullptr;
  CudaEvent ready_ = nullptr;
  std::vector<std::pair<CudaEvent, CudaEvent>> spare_events_;
  PinnedMemory pinned_;
  std::deque<std::shared_ptr<NcclFlight>> in_flight_;
  std::optional<CommFailure> failure_;  ///< why nothing can be launched any more
  int num_host_waiters_ = 0;
  bool closing_ = false;
  std::thread watchdog_;
};

}  // namespace lockstep
