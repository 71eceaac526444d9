// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process that meet in memory: the smallest complete communicator.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/communicator.h"

namespace lockstep::test {

/// One collective as a rank issued it.
struct CollectiveRecord {
  CollectiveKind kind = CollectiveKind::kBarrier;
  std::int64_t numel = 0;
  at::ScalarType dtype = at::kFloat;
  CollectiveTag tag;

  friend bool operator==(const CollectiveRecord& a, const CollectiveRecord& b) {
    return a.kind == b.kind && a.numel == b.numel && a.dtype == b.dtype && a.tag == b.tag;
  }
};

/// "all_reduce bucket 0 step 2: 12 Float", for messages of failing tests.
std::string to_string(const CollectiveRecord& record);

/// Where the ranks meet. Sums are added in rank order.
class LocalGroup {
 public:
  struct Operation {
    CollectiveRecord record;
    ReduceOp op = ReduceOp::kSum;
    std::int64_t root = -1;
    at::Tensor tensor;  // in and out; of an all-gather: in
    at::Tensor output;  // of an all-gather
  };

  explicit LocalGroup(std::int64_t world_size);

  std::int64_t world_size() const { return world_size_; }
  /// Returns the sequence number. The last rank to arrive computes the results of all.
  std::int64_t post(std::int64_t rank, Operation operation);
  /// Errors: Desync if ranks disagree, PeerLost if one left before it arrived.
  void wait(std::int64_t rank, std::int64_t seq);
  /// From now on nobody waits for `rank`.
  void leave(std::int64_t rank);

 private:
  struct Meeting {
    std::vector<std::unique_ptr<Operation>> arrived;
    std::int64_t num_arrived = 0;
    bool done = false;
    std::string desync;
  };

  void complete(Meeting& meeting) const;

  const std::int64_t world_size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::int64_t, Meeting> meetings_;
  std::vector<std::int64_t> num_posted_;
  std::vector<bool> left_;
};

/// One rank's end of a LocalGroup. Keeps a record of all it was asked to do.
class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, std::int64_t rank);

  std::int64_t rank() const override { return rank_; }
  std::int64_t world_size() const override { return group_->world_size(); }
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, std::int64_t root, CollectiveTag tag) override;
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, CollectiveTag tag) override;
  std::unique_ptr<Work> barrier(CollectiveTag tag) override;

  const std::vector<CollectiveRecord>& log() const { return log_; }
  void clear_log() { log_.clear(); }
  /// How many collectives of the log have this call site.
  std::int64_t count(CallSite site) const;

 private:
  std::unique_ptr<Work> post(LocalGroup::Operation operation);

  std::shared_ptr<LocalGroup> group_;
  std::int64_t rank_;
  std::vector<CollectiveRecord> log_;
};

}  // namespace lockstep::test
