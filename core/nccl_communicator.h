// SPDX-License-Identifier: Apache-2.0
// The transport for GPUs: collectives over NCCL, in order with the kernels around them.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/communicator.h"
#include "core/nccl_api.h"
#include "core/nccl_flights.h"

namespace lockstep {

/// Everything one rank must know to join its peers.
struct NcclOptions {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::string directory;        ///< of a RendezvousDirectory, the same for all ranks
  std::string token;            ///< of the same RendezvousDirectory
  std::string group = "world";  ///< several communicators may meet in one directory, each once
  std::int64_t device = -1;     ///< of CUDA; -1: the rank modulo the number of devices
  /// Longest time from a launch to its end on the GPU, what the caller's stream has to do before
  /// included.
  std::chrono::milliseconds timeout{60'000};
  /// Longest time for all ranks to meet and connect.
  std::chrono::milliseconds connect_timeout{30'000};
  /// `Work::wait` waits on the host for every collective, as other transports do: for those who
  /// watch where a rank waits.
  bool wait_on_host = false;
  NcclTimesHook on_ended;        ///< null: nobody asks for times
  const NcclApi* api = nullptr;  ///< null: the real libraries; outlives the communicator
};

/// How NCCL carries a dtype in an all_reduce: `per_element` numbers of `type` for each element.
struct NcclNumbers {
  NcclType type = NcclType::kFloat32;
  std::size_t per_element = 1;  ///< complex: 2
};
/// Nothing if NCCL cannot reduce it.
std::optional<NcclNumbers> nccl_numbers(at::ScalarType dtype);

/// Collectives over libnccl, on one side stream. See Note [A collective on the GPU].
///
/// Order:   a collective runs after everything that the caller's current stream held at its launch,
///          and after earlier collectives. After `Work::wait`, what the calling thread puts into
///          its current stream runs after the collective. Neither halts the host, except for
///          tensors in host memory and barriers, whose `wait` returns once they have ended.
/// Numbers: all ranks get the same bits. The order of additions is NCCL's own and depends on the
///          machine; with two ranks there is only one.
/// Dtypes:  all_reduce: Float, Double, Half, BFloat16, Int, Long, Char, Byte, and sums of
///          ComplexFloat, ComplexDouble, ComplexHalf as pairs. broadcast and all_gather: any dense
///          one.
/// Devices: the communicator's GPU, and host memory: copied to pinned memory at the launch and back
///          at the end, so it must not be in another collective meanwhile (UsageError).
/// Errors:  out of `Work::wait` as TimedOut, PeerLost (what NCCL reports of peers and network) or
///          CommError. For tensors on the GPU, `wait` throws what is known by then; what goes wrong
///          later comes out of the next `wait`. After an error the communicator is aborted, so that
///          no kernel is left waiting, and all later collectives fail at once with the same cause.
///          NCCL does not compare what ranks ask for: a wrong pairing hangs or mixes data, unless a
///          CheckedCommunicator is around it.
/// End:     destroying it issues no collective. Work in flight is given up: its `wait` throws
///          CommError. NCCL frees an idle communicator only when all its ranks do: the destructor
///          waits some seconds for those that do not, and then aborts.
class NcclCommunicator final : public Communicator {
 public:
  /// Blocks until all ranks have met and connected.
  /// Errors: UsageError for wrong options, no driver or GPU, ranks that share a GPU where NCCL
  ///         cannot, and what GroupRendezvous::meet refuses. TimedOut, CommError for ranks that do
  ///         not come.
  explicit NcclCommunicator(const NcclOptions& options);
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  std::int64_t rank() const override;
  std::int64_t world_size() const override;
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, std::int64_t root, CollectiveTag tag) override;
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, CollectiveTag tag) override;
  std::unique_ptr<Work> barrier(CollectiveTag tag) override;

  /// Fuses the collectives that `body` launches: the GPU runs them as one, when `body` returns.
  /// All ranks must group alike. They must not be waited for in `body` (UsageError). What `body`
  /// throws passes through, after the launch of what it asked for until then.
  void grouped(const std::function<void()>& body);

  /// The CUDA device.
  int device() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::unique_ptr<NcclCommunicator> make_nccl_communicator(const NcclOptions& options);

}  // namespace lockstep
