// SPDX-License-Identifier: Apache-2.0
// Decisions of the simulated world.
#include "sim/dispatcher.h"

#include <algorithm>
#include <limits>

#include "core/check.h"
#include "sim/cancelled.h"

namespace lockstep::sim {

Dispatcher::Dispatcher(const WorldOptions& options, RankExecutor& executor, VirtualClock& clock,
                       TraceRecorder& recorder)
    : executor_(executor),
      clock_(clock),
      recorder_(recorder),
      generators_(options.world_size),
      scheduler_(make_scheduler(options.schedule)),
      ranks_(static_cast<std::size_t>(options.world_size)),
      decisions_max_(options.switches_max) {
  runnable_.reserve(ranks_.size());
}

void Dispatcher::run() {
  const std::int64_t first = choose(kController, /*may_stay=*/false);
  if (first != kController) {
    take_turn(kController, first);
    executor_.run(first);
  }
}

void Dispatcher::cancel(std::int64_t rank) {
  RankState& state = state_of(rank);
  LOCKSTEP_CHECK(state.phase != Phase::kEnded, "rank {} has ended already", rank);
  unwinding_ = true;
  state.cancelled = true;
  state.phase = Phase::kReady;
  take_turn(kController, rank);
  executor_.run(rank);
  LOCKSTEP_CHECK(state.phase == Phase::kEnded, "cancelled rank {} gave way", rank);
}

void Dispatcher::yield_point(std::int64_t rank) {
  if (!is_cancelled(rank)) {
    switch_from(rank, /*may_stay=*/true);
  }
}

void Dispatcher::give_way(std::int64_t rank) {
  throw_if_cancelled(rank);
  switch_from(rank, /*may_stay=*/false);
  throw_if_cancelled(rank);
}

void Dispatcher::sleep(std::int64_t rank, std::int64_t duration_ns) {
  LOCKSTEP_USAGE(duration_ns >= 0, "rank {} asked to sleep for {} ns", rank, duration_ns);
  LOCKSTEP_USAGE(duration_ns <= std::numeric_limits<std::int64_t>::max() - clock_.now_ns(),
                 "rank {} asked to sleep for {} ns, past the end of virtual time", rank,
                 duration_ns);
  if (duration_ns == 0) {
    give_way(rank);
    return;
  }
  throw_if_cancelled(rank);
  RankState& state = state_of(rank);
  state.phase = Phase::kSleeping;
  state.wake_ns = clock_.now_ns() + duration_ns;
  switch_from(rank, /*may_stay=*/false);
  throw_if_cancelled(rank);
}

void Dispatcher::block(std::int64_t rank) {
  throw_if_cancelled(rank);
  state_of(rank).phase = Phase::kWaiting;
  switch_from(rank, /*may_stay=*/false);
  throw_if_cancelled(rank);
}

void Dispatcher::wake(std::int64_t rank) {
  LOCKSTEP_CHECK(is_waiting(rank), "rank {} is not waiting", rank);
  state_of(rank).phase = Phase::kReady;
}

std::int64_t Dispatcher::end(std::int64_t rank) {
  state_of(rank).phase = Phase::kEnded;
  const std::int64_t to = choose(rank, /*may_stay=*/false);
  take_turn(rank, to);
  return to;
}

void Dispatcher::throw_if_cancelled(std::int64_t rank) const {
  if (is_cancelled(rank)) {
    throw Cancelled();
  }
}

// Collects the runnable ranks in ascending order; false if there are none.
bool Dispatcher::collect_runnable() {
  runnable_.clear();
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].phase == Phase::kReady) {
      runnable_.push_back(static_cast<std::int64_t>(rank));
    }
  }
  return !runnable_.empty();
}

bool Dispatcher::wake_earliest_sleepers() {
  std::int64_t earliest_ns = std::numeric_limits<std::int64_t>::max();
  bool found = false;
  for (const RankState& state : ranks_) {
    if (state.phase == Phase::kSleeping) {
      earliest_ns = std::min(earliest_ns, state.wake_ns);
      found = true;
    }
  }
  if (!found) {
    return false;
  }
  clock_.advance_to(earliest_ns);
  for (RankState& state : ranks_) {
    if (state.phase == Phase::kSleeping && state.wake_ns == earliest_ns) {
      state.phase = Phase::kReady;
    }
  }
  return true;
}

std::int64_t Dispatcher::choose(std::int64_t current, bool may_stay) {
  if (unwinding_ || exhausted_) {
    return kController;
  }
  if (++num_decisions_ > decisions_max_) {
    exhausted_ = true;
    return kController;
  }
  if (!collect_runnable()) {
    if (!wake_earliest_sleepers() || !collect_runnable()) {
      return kController;
    }
  }
  return scheduler_->next(runnable_, current, may_stay);
}

// What has to happen whenever the turn moves, before the other thread is let go.
void Dispatcher::take_turn(std::int64_t from, std::int64_t to) {
  generators_.swap(from, to);
  if (to != kController) {
    recorder_.record(to, {EventKind::kResumed, -1});
  }
}

void Dispatcher::switch_from(std::int64_t rank, bool may_stay) {
  const std::int64_t to = choose(rank, may_stay);
  if (to != rank) {
    take_turn(rank, to);
    executor_.hand_over(rank, to);
  }
}

}  // namespace lockstep::sim
