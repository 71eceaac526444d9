// SPDX-License-Identifier: Apache-2.0
// The real transport: collectives over Gloo's TCP, one progress thread per communicator.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/collective_description.h"
#include "core/communicator.h"
#include "core/gloo_device.h"

namespace lockstep {

/// Everything one rank must know to join its peers.
struct GlooOptions {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::string directory;        ///< of a RendezvousDirectory, the same for all ranks
  std::string token;            ///< of the same RendezvousDirectory
  std::string group = "world";  ///< several communicators may meet in one directory, each once
  /// Shared by all communicators of a process: 4 to 5 times faster for small collectives than one
  /// each. Null: one of its own, as `listen_on` says.
  std::shared_ptr<GlooDevice> device;
  GlooDeviceOptions listen_on;
  /// Longest wait for the slowest rank to enter a collective, and then for each transfer in it.
  std::chrono::milliseconds timeout{60'000};
  /// Longest time for all ranks to meet and connect.
  std::chrono::milliseconds connect_timeout{30'000};
  /// Compare tags across ranks (Desync). Off: only kind, op, numel, dtype and root are compared.
  bool check_tags = true;
};

/// Where a communicator stands at one moment.
struct CommunicatorStatus {
  std::int64_t posted = 0;     ///< collectives launched
  std::int64_t completed = 0;  ///< of those, ended, well or not
  std::optional<CollectiveDescription> running;
  std::vector<std::int64_t> waiting_for;  ///< ranks that have not entered `running`, ascending
  std::optional<std::string> failure;     ///< why no further collective can succeed
};

/// Collectives over libgloo.
///
/// Order:   any number in flight; they run in issue order on one progress thread. A collective
///          begins with a round in which every rank tells every other what it is about to do; data
///          moves only when all agree. So a wrong pairing is a Desync on every rank, where Gloo
///          itself would mix the data, hang, or (sizes differ) end the process.
/// Numbers: all_reduce is Gloo's ring: with chunk(e) the chunk of element e, ranks are added in
///          descending order from chunk(e)-1 down to chunk(e), each hop in the tensor's dtype by
///          a kernel of ours (core/ring_kernels.h): Gloo's own float16 loses some additions, its
///          bfloat16 does not exist, and its NaN payloads depend on the compiler. Where there are
///          NaNs, kMax depends on the order too (and is still the same on all ranks).
/// Dtypes:  all_reduce: float32, float64, float16, bfloat16, int32, int64, int8, uint8. broadcast
///          and all_gather: any dense one on the CPU.
/// FTZ:     additions run on the progress thread, which inherits the floating-point environment
///          (MXCSR: rounding, flush-to-zero) of the thread that constructs the communicator; later
///          changes on the caller's thread have no effect, and sticky flags do not come back.
/// Errors:  out of `Work::wait` as PeerLost, TimedOut or Desync. Once a collective has failed, all
///          later ones fail at once with the same cause.
/// End:     destroying it issues no collective. Work in flight is given up: its `wait` throws
///          CommError, and peers that need this rank see PeerLost. A rank that is done while others
///          still need it in no collective may go; one that should look alive must stay alive.
class GlooCommunicator final : public Communicator {
 public:
  /// Blocks until all ranks have met and connected.
  /// Errors: UsageError for wrong options; LaunchError for a directory that may not be used or
  ///         belongs to another run, a rank that is taken, world sizes that differ, an interface
  ///         that is not there, a loopback address where ranks are on several machines. TimedOut,
  ///         PeerLost for ranks that do not come.
  explicit GlooCommunicator(const GlooOptions& options);
  ~GlooCommunicator() override;
  GlooCommunicator(const GlooCommunicator&) = delete;
  GlooCommunicator& operator=(const GlooCommunicator&) = delete;

  /// "rank 0 on host a listens on eth0 (10.0.0.1)"; in a world of one it does not listen.
  const std::string& listens_on() const;

  std::int64_t rank() const override;
  std::int64_t world_size() const override;
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, std::int64_t root, CollectiveTag tag) override;
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, CollectiveTag tag) override;
  std::unique_ptr<Work> barrier(CollectiveTag tag) override;

  /// May be called from any thread at any time; never waits for communication.
  CommunicatorStatus status() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::unique_ptr<GlooCommunicator> make_gloo_communicator(const GlooOptions& options);

}  // namespace lockstep
