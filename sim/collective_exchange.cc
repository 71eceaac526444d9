// SPDX-License-Identifier: Apache-2.0
// Where the collectives of a world take place.
#include <cstring>
#include <utility>

#include "core/check.h"
#include "sim/ring_order.h"
#include "sim/sim_communicator.h"

namespace lockstep::sim {
namespace {

// Bytes are moved past LibTorch's dispatcher, as a real transport does: no graph is recorded and no
// version counter moves.
void copy_bytes(void* to, const at::Tensor& from) {
  if (to != from.data_ptr() && from.nbytes() > 0) {
    std::memmove(to, from.data_ptr(), from.nbytes());
  }
}

void gather(const std::vector<Contribution>& by_rank) {
  const std::size_t row_bytes = by_rank.front().input.nbytes();
  for (const Contribution& to : by_rank) {
    auto* row = static_cast<std::byte*>(to.tensor.data_ptr());
    for (const Contribution& from : by_rank) {
      copy_bytes(row, from.input);
      row += row_bytes;
    }
  }
}

}  // namespace

CollectiveExchange::CollectiveExchange(const WorldOptions& options, Dispatcher& dispatcher,
                                       TraceRecorder& recorder)
    : dispatcher_(dispatcher),
      recorder_(recorder),
      matcher_(options.world_size, options.check_tags),
      waiting_seq_(static_cast<std::size_t>(options.world_size), -1) {}

std::int64_t CollectiveExchange::post(std::int64_t rank, Contribution contribution) {
  dispatcher_.throw_if_cancelled(rank);
  const std::int64_t seq = matcher_.next_seq(rank);
  contribution.info.seq = seq;
  recorder_.record(rank, EventKind::kPosted, contribution.info);
  const bool all_was_well = !matcher_.mismatch();
  switch (matcher_.post(rank, std::move(contribution))) {
    case CollectiveMatcher::Outcome::kPending:
      break;
    case CollectiveMatcher::Outcome::kComplete:
      perform(matcher_.take_complete());
      wake_waiting(seq, /*later_ones_too=*/false);
      break;
    case CollectiveMatcher::Outcome::kFailed:
      if (all_was_well) {
        wake_waiting(seq, /*later_ones_too=*/true);
      }
      break;
  }
  return seq;
}

void CollectiveExchange::wait(std::int64_t rank, std::int64_t seq) {
  if (!matcher_.is_complete(seq) && !matcher_.has_failed(seq)) {
    // The slot may be gone when the rank comes back.
    const CollectiveInfo info = matcher_.pending(rank, seq);
    recorder_.record(rank, EventKind::kWaitBegin, info);
    waiting_seq_[static_cast<std::size_t>(rank)] = seq;
    dispatcher_.block(rank);
    waiting_seq_[static_cast<std::size_t>(rank)] = -1;
    recorder_.record(rank, EventKind::kWaitEnd, info);
  }
  if (matcher_.has_failed(seq)) {
    throw Desync(matcher_.mismatch_text());
  }
  LOCKSTEP_CHECK(matcher_.is_complete(seq), "rank {} was woken before collective {} was complete",
                 rank, seq);
}

std::int64_t CollectiveExchange::waiting_seq(std::int64_t rank) const {
  return waiting_seq_[static_cast<std::size_t>(rank)];
}

void CollectiveExchange::perform(const std::vector<Contribution>& by_rank) {
  const CollectiveInfo& info = by_rank.front().info;
  at::Tensor result = by_rank.front().tensor;
  switch (info.kind) {
    case CollectiveKind::kAllReduce: {
      std::vector<at::Tensor> tensors;
      tensors.reserve(by_rank.size());
      for (const Contribution& contribution : by_rank) {
        tensors.push_back(contribution.tensor);
      }
      ring_all_reduce(tensors, info.op);
      break;
    }
    case CollectiveKind::kBroadcast:
      result = by_rank[static_cast<std::size_t>(info.root)].tensor;
      for (const Contribution& to : by_rank) {
        copy_bytes(to.tensor.data_ptr(), result);
      }
      break;
    case CollectiveKind::kAllGather:
      gather(by_rank);
      break;
    case CollectiveKind::kBarrier:
      break;
  }
  const std::uint64_t data_hash =
      result.defined() ? TraceRecorder::hash_bytes(result.data_ptr(), result.nbytes()) : 0;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    recorder_.record(static_cast<std::int64_t>(rank), EventKind::kCompleted, by_rank[rank].info,
                     data_hash);
  }
}

void CollectiveExchange::wake_waiting(std::int64_t seq, bool later_ones_too) {
  for (std::size_t rank = 0; rank < waiting_seq_.size(); ++rank) {
    if (waiting_seq_[rank] == seq || (later_ones_too && waiting_seq_[rank] > seq)) {
      dispatcher_.wake(static_cast<std::int64_t>(rank));
    }
  }
}

}  // namespace lockstep::sim
