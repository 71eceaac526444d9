// SPDX-License-Identifier: Apache-2.0
// A communicator that knows, for whoever watches, what its rank has issued and waits in.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "core/communicator.h"
#include "sim/world.h"

namespace lockstep::harness {

/// Passes everything on to another communicator and keeps count.
///
/// `waiting` is the collective whose `Work::wait` the rank's thread is in, as in the simulator: not
/// merely one that happens to be in flight while the rank computes.
class WatchedCommunicator final : public Communicator {
 public:
  /// Where the rank stands. Any thread may ask at any time.
  struct Standing {
    std::int64_t posted = 0;                       ///< collectives issued
    std::int64_t progress = 0;                     ///< grows with every launch and every end
    std::optional<sim::CollectiveInfo> waiting;    ///< the rank's thread is in its `wait`
    std::optional<sim::CollectiveInfo> failed_in;  ///< the first one whose `wait` threw
  };

  explicit WatchedCommunicator(std::unique_ptr<Communicator> inner);
  ~WatchedCommunicator() override;

  std::int64_t rank() const override { return rank_; }
  std::int64_t world_size() const override { return world_size_; }
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, std::int64_t root, CollectiveTag tag) override;
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, CollectiveTag tag) override;
  std::unique_ptr<Work> barrier(CollectiveTag tag) override;

  Standing standing() const;

  /// Destroys the inner communicator, so that a `wait` in progress throws. Later launches throw
  /// CommError. Any thread may call it, more than once.
  void abandon();

 private:
  class Ledger;
  class WatchedWork;

  template <class Launch>
  std::unique_ptr<Work> launch(sim::CollectiveInfo info, const Launch& inner_launch);

  const std::int64_t rank_, world_size_;
  const std::shared_ptr<Ledger> ledger_;
  std::mutex launch_mutex_;  ///< held during launches, which never wait for other ranks
  std::unique_ptr<Communicator> inner_;
};

}  // namespace lockstep::harness
