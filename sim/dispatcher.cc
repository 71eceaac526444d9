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
      own_scheduler_(options.scheduler == nullptr ? make_scheduler(options.schedule) : nullptr),
      scheduler_(options.scheduler == nullptr ? *own_scheduler_ : *options.scheduler),
      ranks_(static_cast<std::size_t>(options.world_size)),
      decisions_max_(options.switches_max),
      scheduling_(options.first_scheduled_step < 0) {
  decision_.actors.reserve(2 * ranks_.size());
  decision_.settled.resize(ranks_.size(), true);
  decision_.issued.resize(ranks_.size(), 0);
  decision_.completed.resize(ranks_.size(), 0);
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

bool Dispatcher::block(std::int64_t rank, std::int64_t timeout_ns) {
  throw_if_cancelled(rank);
  RankState& state = state_of(rank);
  state.phase = Phase::kWaiting;
  state.timed_out = false;
  state.wake_ns = timeout_ns > 0 ? clock_.now_ns() + timeout_ns : -1;
  switch_from(rank, /*may_stay=*/false);
  throw_if_cancelled(rank);
  return !state.timed_out;
}

void Dispatcher::wake(std::int64_t rank) {
  RankState& state = state_of(rank);
  // What comes in the moment in which patience ends, before the rank has gone on, is in time.
  LOCKSTEP_CHECK(is_waiting(rank) || state.timed_out, "rank {} is not waiting", rank);
  state.phase = Phase::kReady;
  state.timed_out = false;
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

// Collects what can happen next; false if nothing can.
bool Dispatcher::collect_actors() {
  std::vector<Actor>& actors = decision_.actors;
  actors.clear();
  const auto world_size = static_cast<std::int64_t>(ranks_.size());
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    if (state_of(rank).phase == Phase::kReady) {
      actors.push_back(rank);
    }
  }
  if (completions_ != nullptr) {
    for (std::int64_t rank = 0; rank < world_size; ++rank) {
      if (completions_->has_completion(rank)) {
        actors.push_back(completion_at(rank));
      }
      const auto index = static_cast<std::size_t>(rank);
      decision_.settled[index] = completions_->is_settled(rank);
      decision_.issued[index] = completions_->num_issued(rank);
      decision_.completed[index] = completions_->num_complete(rank);
    }
    decision_.failed = completions_->has_failed();
  }
  return !actors.empty();
}

// To the earliest moment at which a sleeper wakes up or a wait has lasted too long; false if there
// is none.
bool Dispatcher::advance_time() {
  const auto has_alarm = [](const RankState& state) {
    return (state.phase == Phase::kSleeping || state.phase == Phase::kWaiting) &&
           state.wake_ns >= 0;
  };
  std::int64_t earliest_ns = std::numeric_limits<std::int64_t>::max();
  bool found = false;
  for (const RankState& state : ranks_) {
    if (has_alarm(state)) {
      earliest_ns = std::min(earliest_ns, state.wake_ns);
      found = true;
    }
  }
  if (!found) {
    return false;
  }
  clock_.advance_to(earliest_ns);
  for (RankState& state : ranks_) {
    if (has_alarm(state) && state.wake_ns == earliest_ns) {
      state.timed_out = state.phase == Phase::kWaiting;
      state.phase = Phase::kReady;
    }
  }
  return true;
}

// Asks the scheduler, and notes where it leaves the default path.
Actor Dispatcher::pick(std::int64_t current, bool may_stay) {
  decision_.current = current;
  decision_.now_ns = clock_.now_ns();
  decision_.may_stay = may_stay;
  Actor chosen = kAbandon;
  try {
    chosen = scheduling_ ? scheduler_.next(decision_) : default_choice(decision_);
  } catch (...) {
    error_ = std::current_exception();  // on the thread of a rank, of which it is no fault
  }
  if (decision_.actors.size() > 1 && chosen != kAbandon) {
    if (chosen != default_choice(decision_)) {
      schedule_.push_back({num_choices_, chosen});
    }
    ++num_choices_;
  }
  return chosen;
}

// Lets collectives complete until a rank is to run. Who that is, or the controller if nobody can.
std::int64_t Dispatcher::choose(std::int64_t current, bool may_stay) {
  while (!unwinding_ && !exhausted_ && !abandoned_) {
    if (++num_decisions_ > decisions_max_) {
      exhausted_ = true;
      break;
    }
    if (!collect_actors() && (!advance_time() || !collect_actors())) {
      break;
    }
    const Actor chosen = pick(current, may_stay);
    if (chosen == kAbandon) {
      abandoned_ = true;
      break;
    }
    if (!is_completion(chosen)) {
      return chosen;
    }
    completions_->complete_next(rank_of(chosen));
  }
  return kController;
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
