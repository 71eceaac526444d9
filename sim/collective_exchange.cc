// SPDX-License-Identifier: Apache-2.0
// Where the collectives of a world take place.
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/check.h"
#include "core/collective_description.h"
#include "core/time_units.h"
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

at::Tensor copy_of(const at::Tensor& tensor) {
  const at::Tensor copy = at::empty(tensor.sizes(), tensor.scalar_type());
  copy_bytes(copy.data_ptr(), tensor);
  return copy;
}

// Brings the collective about in the contributions' tensors. Returns the hash of its result.
std::uint64_t carry_out(const std::vector<Contribution>& by_rank) {
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
  return result.defined() ? TraceRecorder::hash_bytes(result.data_ptr(), result.nbytes()) : 0;
}

// "rank 0: all_reduce bucket 1 at step 3 (seq 17, 100 Float, sum)", as real transports tell it.
std::string where(std::int64_t rank, const CollectiveInfo& info) {
  return fmt::format("rank {}: {}", rank, describe(info));
}

}  // namespace

CollectiveExchange::CollectiveExchange(const WorldOptions& options, Dispatcher& dispatcher,
                                       TraceRecorder& recorder)
    : dispatcher_(dispatcher),
      recorder_(recorder),
      completes_at_once_(options.scheduler == nullptr &&
                         options.schedule.policy == SchedulePolicy::kRoundRobin),
      timeout_ns_(options.timeout_ns),
      matcher_(options.world_size, options.check_tags),
      waiting_seq_(static_cast<std::size_t>(options.world_size), -1),
      num_complete_(static_cast<std::size_t>(options.world_size), 0),
      in_flight_(static_cast<std::size_t>(options.world_size)),
      departures_(static_cast<std::size_t>(options.world_size)) {
  if (!completes_at_once_) {
    dispatcher_.decide_completions_of(*this);
  }
}

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
      if (is_broken(seq)) {
        wake_from(seq);  // the last rank came when others had given up
      } else {
        perform(matcher_.take_complete());
      }
      break;
    case CollectiveMatcher::Outcome::kFailed:
      if (all_was_well) {
        wake_from(seq);
      }
      break;
  }
  dispatcher_.yield_point(rank);
  return seq;
}

// Note [How the loss of a rank is told]
// A rank that died fails every wait for a collective that it has not issued, at once, as a broken
// connection does. A wait that lasts too long fails too, and then its rank has given up: that
// collective and later ones never take place, so that a rank which comes late finds itself alone.
// Those that still wait with the rank that gave up wait on, until their own limit or until the late
// rank comes. Whatever a wait of a rank failed with, its later ones fail with as well.
void CollectiveExchange::wait(std::int64_t rank, std::int64_t seq) {
  if (is_complete(rank, seq) || matcher_.has_failed(seq)) {
    dispatcher_.yield_point(rank);
  } else {
    // The slot may be gone when the rank comes back.
    const CollectiveInfo info = info_of(rank, seq);
    std::optional<CommFailure> failure = failure_of(rank, info);
    if (failure) {
      dispatcher_.yield_point(rank);
    } else {
      recorder_.record(rank, EventKind::kWaitBegin, info);
      waiting_seq_[static_cast<std::size_t>(rank)] = seq;
      const bool in_time = dispatcher_.block(rank, timeout_ns_);
      waiting_seq_[static_cast<std::size_t>(rank)] = -1;
      recorder_.record(rank, EventKind::kWaitEnd, info);
      if (!in_time) {
        give_up(rank, seq,
                {CommFailure::Kind::kTimedOut,
                 fmt::format("{}: timed out after {} ms: not entered by rank {}", where(rank, info),
                             timeout_ns_ / kNsPerMs, fmt::join(matcher_.missing(seq), ", "))});
      }
      failure = is_complete(rank, seq) ? std::nullopt : failure_of(rank, info);
    }
    if (failure && !matcher_.has_failed(seq)) {
      give_up(rank, seq, *std::move(failure));
    }
  }
  if (matcher_.has_failed(seq)) {
    throw Desync(matcher_.mismatch_text());
  }
  LOCKSTEP_CHECK(is_complete(rank, seq), "rank {} was woken before collective {} was complete",
                 rank, seq);
}

void CollectiveExchange::give_up(std::int64_t rank, std::int64_t seq, CommFailure failure) {
  Departure& departure = departures_[static_cast<std::size_t>(rank)];
  if (seq < departure.from_seq) {
    departure = {seq, false, failure};
  }
  throw_failure(failure);
}

void CollectiveExchange::lose(std::int64_t rank) {
  Departure& departure = departures_[static_cast<std::size_t>(rank)];
  departure.from_seq = std::min(departure.from_seq, matcher_.next_seq(rank));
  departure.died = true;
  wake_from(departure.from_seq);
}

/// Some rank has given it up, so that it cannot take place any more.
bool CollectiveExchange::is_broken(std::int64_t seq) const {
  return std::any_of(departures_.begin(), departures_.end(),
                     [seq](const Departure& departure) { return departure.from_seq <= seq; });
}

/// Why the collective `info` of `rank`, which is not complete there, never will be; empty if it
/// still may.
std::optional<CommFailure> CollectiveExchange::failure_of(std::int64_t rank,
                                                          const CollectiveInfo& info) const {
  const Departure& own = departures_[static_cast<std::size_t>(rank)];
  if (own.from_seq <= info.seq) {
    return own.own_failure;
  }
  std::vector<std::size_t> dead, given_up;
  for (std::size_t peer = 0; peer < departures_.size(); ++peer) {
    if (departures_[peer].from_seq <= info.seq) {
      (departures_[peer].died ? dead : given_up).push_back(peer);
    }
  }
  if (!dead.empty()) {
    return CommFailure{CommFailure::Kind::kPeerLost,
                       fmt::format("{}: lost rank{} {}: process ended", where(rank, info),
                                   dead.size() == 1 ? "" : "s", fmt::join(dead, ", "))};
  }
  if (!given_up.empty() && matcher_.missing(info.seq).empty()) {
    return CommFailure{CommFailure::Kind::kPeerLost,
                       fmt::format("{}: rank {} had given up waiting", where(rank, info),
                                   fmt::join(given_up, ", "))};
  }
  return std::nullopt;
}

bool CollectiveExchange::is_settled(std::int64_t rank) const {
  return matcher_.is_complete(matcher_.next_seq(rank) - 1) ||
         matcher_.has_failed(matcher_.next_seq(rank) - 1);
}

void CollectiveExchange::complete_next(std::int64_t rank) {
  std::deque<Completion>& queue = in_flight_[static_cast<std::size_t>(rank)];
  const Completion completion = std::move(queue.front());
  queue.pop_front();
  if (completion.result.defined()) {
    copy_bytes(completion.tensor.data_ptr(), completion.result);
  }
  recorder_.record(rank, EventKind::kCompleted, completion.info, completion.result_hash);
  ++num_complete_[static_cast<std::size_t>(rank)];
  if (waiting_seq(rank) == completion.info.seq) {
    dispatcher_.wake(rank);
  }
}

bool CollectiveExchange::is_complete(std::int64_t rank, std::int64_t seq) const {
  return seq < num_complete_[static_cast<std::size_t>(rank)];
}

// Precondition: `rank` has issued `seq`, and that is neither complete there nor failed.
CollectiveInfo CollectiveExchange::info_of(std::int64_t rank, std::int64_t seq) const {
  if (!matcher_.is_complete(seq)) {
    return matcher_.pending(rank, seq);
  }
  return in_flight(rank)[static_cast<std::size_t>(seq - in_flight(rank).front().info.seq)].info;
}

void CollectiveExchange::perform(std::vector<Contribution> by_rank) {
  std::vector<Completion> completions;
  for (Contribution& contribution : by_rank) {
    completions.push_back({contribution.info, contribution.tensor, {}, 0});
    if (!completes_at_once_ && contribution.tensor.defined()) {
      // What the rank's tensor will hold takes shape elsewhere.
      contribution.tensor = copy_of(contribution.tensor);
      completions.back().result = contribution.tensor;
    }
  }
  const std::uint64_t result_hash = carry_out(by_rank);
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    completions[rank].result_hash = result_hash;
    in_flight_[rank].push_back(std::move(completions[rank]));
    if (completes_at_once_) {
      complete_next(static_cast<std::int64_t>(rank));
    }
  }
}

// The waits for `seq` and later ones cannot end well any more.
void CollectiveExchange::wake_from(std::int64_t seq) {
  for (std::size_t rank = 0; rank < waiting_seq_.size(); ++rank) {
    if (waiting_seq_[rank] >= seq && dispatcher_.is_waiting(static_cast<std::int64_t>(rank))) {
      dispatcher_.wake(static_cast<std::int64_t>(rank));
    }
  }
}

}  // namespace lockstep::sim
