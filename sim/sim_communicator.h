// SPDX-License-Identifier: Apache-2.0
// The Communicator of a simulated rank, and what all of a world share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "core/comm_failure.h"
#include "core/communicator.h"
#include "sim/collective_matcher.h"
#include "sim/dispatcher.h"
#include "sim/trace_recorder.h"

namespace lockstep::sim {

/// The collectives of one world in flight.
///
/// A collective takes place the moment its last rank issues it, on that rank's thread, with what
/// the ranks' tensors hold then. Under the default schedule it is complete everywhere at once.
/// Under others, completing is an event of each rank's own, and its tensor shows the result only
/// from then on. Threads: whoever has the turn.
class CollectiveExchange final : public CompletionSource {
 public:
  /// References outlive this object.
  CollectiveExchange(const WorldOptions& options, Dispatcher& dispatcher, TraceRecorder& recorder);

  /// Issues `contribution` as the next collective of `rank` and returns its seq.
  /// Errors: Cancelled.
  std::int64_t post(std::int64_t rank, Contribution contribution);
  /// Errors: Desync, PeerLost, TimedOut; Cancelled.
  void wait(std::int64_t rank, std::int64_t seq);
  /// What `rank` has not issued by now it never will.
  void lose(std::int64_t rank);

  const CollectiveMatcher& matcher() const { return matcher_; }
  /// The seq that `rank` is blocked in, or -1.
  std::int64_t waiting_seq(std::int64_t rank) const {
    return waiting_seq_[static_cast<std::size_t>(rank)];
  }

  bool has_completion(std::int64_t rank) const override { return !in_flight(rank).empty(); }
  bool is_settled(std::int64_t rank) const override;
  std::int64_t num_issued(std::int64_t rank) const override { return matcher_.next_seq(rank); }
  std::int64_t num_complete(std::int64_t rank) const override {
    return num_complete_[static_cast<std::size_t>(rank)];
  }
  bool has_failed() const override {
    return matcher_.mismatch().has_value() ||
           is_broken(std::numeric_limits<std::int64_t>::max() - 1);
  }
  void complete_next(std::int64_t rank) override;

 private:
  /// What a rank does not see yet.
  struct Completion {
    CollectiveInfo info;
    at::Tensor tensor;  ///< the rank's
    at::Tensor result;  ///< its bytes to be; undefined: they are there already
    std::uint64_t result_hash = 0;
  };

  const std::deque<Completion>& in_flight(std::int64_t rank) const {
    return in_flight_[static_cast<std::size_t>(rank)];
  }
  /// From which collective on a rank takes no part in any, and why.
  struct Departure {
    std::int64_t from_seq = std::numeric_limits<std::int64_t>::max();
    bool died = false;        ///< else it gave up: some wait of its own failed
    CommFailure own_failure;  ///< if it gave up
  };

  bool is_complete(std::int64_t rank, std::int64_t seq) const;
  bool is_broken(std::int64_t seq) const;
  std::optional<CommFailure> failure_of(std::int64_t rank, const CollectiveInfo& info) const;
  [[noreturn]] void give_up(std::int64_t rank, std::int64_t seq, CommFailure failure);
  CollectiveInfo info_of(std::int64_t rank, std::int64_t seq) const;
  void perform(std::vector<Contribution> by_rank);
  void wake_from(std::int64_t seq);

  Dispatcher& dispatcher_;
  TraceRecorder& recorder_;
  bool completes_at_once_;
  std::int64_t timeout_ns_;
  CollectiveMatcher matcher_;
  std::vector<std::int64_t> waiting_seq_;          // by rank; -1: not blocked
  std::vector<std::int64_t> num_complete_;         // by rank; they complete in order
  std::vector<std::deque<Completion>> in_flight_;  // by rank
  std::vector<Departure> departures_;              // by rank
};

/// One rank's side. `Work` it returned must not be waited for after the world has ended.
class SimCommunicator final : public Communicator {
 public:
  /// `exchange` outlives this object.
  SimCommunicator(CollectiveExchange& exchange, std::int64_t rank, std::int64_t world_size)
      : exchange_(exchange), rank_(rank), world_size_(world_size) {}

  std::int64_t rank() const override { return rank_; }
  std::int64_t world_size() const override { return world_size_; }
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override;
  std::unique_ptr<Work> broadcast(at::Tensor tensor, std::int64_t root, CollectiveTag tag) override;
  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, CollectiveTag tag) override;
  std::unique_ptr<Work> barrier(CollectiveTag tag) override;

 private:
  std::unique_ptr<Work> launch(Contribution contribution);

  CollectiveExchange& exchange_;
  std::int64_t rank_;
  std::int64_t world_size_;
};

}  // namespace lockstep::sim
