// SPDX-License-Identifier: Apache-2.0
// A communicator that writes down what its rank issues, and how long it waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "core/communicator.h"
#include "harness/run.h"

namespace lockstep::harness {

/// Passes everything on to another communicator, and keeps the list of what that one accepted.
/// Threads: those of the communicator; `records` any.
class RecordingCommunicator final : public Communicator {
 public:
  /// `inner` outlives this.
  explicit RecordingCommunicator(Communicator& inner) : inner_(inner) {}

  std::int64_t rank() const override { return inner_.rank(); }
  std::int64_t world_size() const override { return inner_.world_size(); }
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, std::int64_t root, CollectiveTag tag) override;
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, CollectiveTag tag) override;
  std::unique_ptr<Work> barrier(CollectiveTag tag) override;

  std::vector<CollectiveRecord> records() const;

  /// From now on waits are measured with this clock; an empty one measures nothing.
  void measure_waits(std::function<std::int64_t()> now_ns) { now_ns_ = std::move(now_ns); }
  /// Of the waits that have ended, in whatever way.
  std::int64_t longest_wait_ns() const { return longest_wait_ns_; }

 private:
  std::unique_ptr<Work> note(std::unique_ptr<Work> work, CollectiveKind kind,
                             const at::Tensor& tensor, const CollectiveTag& tag);

  Communicator& inner_;
  mutable std::mutex mutex_;
  std::vector<CollectiveRecord> records_;
  std::function<std::int64_t()> now_ns_;
  std::atomic<std::int64_t> longest_wait_ns_{0};
};

}  // namespace lockstep::harness
