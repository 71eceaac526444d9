// SPDX-License-Identifier: Apache-2.0
// Who can run, who runs next, and what time it is.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "sim/generator_bank.h"
#include "sim/rank_executor.h"
#include "sim/scheduler.h"
#include "sim/trace_recorder.h"
#include "sim/virtual_clock.h"
#include "sim/world.h"

namespace lockstep::sim {

/// Collectives in flight, as far as decisions are about them.
class CompletionSource {
 public:
  virtual ~CompletionSource() = default;
  /// A collective that all ranks have issued is not complete at `rank` yet.
  virtual bool has_completion(std::int64_t rank) const = 0;
  /// All collectives that `rank` has issued have been issued by all ranks.
  virtual bool is_settled(std::int64_t rank) const = 0;
  virtual std::int64_t num_issued(std::int64_t rank) const = 0;
  virtual std::int64_t num_complete(std::int64_t rank) const = 0;
  /// Ranks disagreed about a collective, or one gave it up.
  virtual bool has_failed() const = 0;
  /// Completes the first of them at `rank`, and wakes it if it waits for that one.
  virtual void complete_next(std::int64_t rank) = 0;
};

/// The state of every rank, and the decisions that move the turn from one to the next.
///
/// Control changes hands in these calls and nowhere else. The clock stands still while anybody can
/// run; when only sleepers are left, it jumps to the earliest time one of them wakes. A rank that
/// waits with a limit counts as one.
/// Threads: whoever has the turn.
class Dispatcher {
 public:
  static constexpr std::int64_t kController = RankExecutor::kController;

  /// All references outlive this object. LibTorch's generator belongs to the controller as long as
  /// the controller has the turn.
  Dispatcher(const WorldOptions& options, RankExecutor& executor, VirtualClock& clock,
             TraceRecorder& recorder);

  /// Collectives complete by decision, not at once; `source` outlives the run. Before `run`.
  void decide_completions_of(CompletionSource& source) { completions_ = &source; }

  // For the controller.

  /// Lets ranks run until none can.
  void run();
  /// Gives `rank` up: every seam it stands in or comes to throws Cancelled; returns when it has
  /// ended.
  void cancel(std::int64_t rank);
  /// The run was stopped because it took too many decisions.
  bool exhausted() const { return exhausted_; }
  /// The scheduler gave the run up.
  bool abandoned() const { return abandoned_; }
  /// What the scheduler threw; the run was given up then.
  const std::exception_ptr& error() const { return error_; }
  /// What was chosen otherwise than by default so far, and how often there was a choice.
  const Schedule& schedule() const { return schedule_; }
  std::int64_t num_choices() const { return num_choices_; }
  bool has_ended(std::int64_t rank) const { return state_of(rank).phase == Phase::kEnded; }
  bool is_waiting(std::int64_t rank) const { return state_of(rank).phase == Phase::kWaiting; }

  // For the rank that has the turn.

  std::int64_t now_ns() const { return clock_.now_ns(); }
  /// From now on the scheduler is asked.
  void begin_scheduling() { scheduling_ = true; }

  /// The scheduler may let another rank run first.
  void yield_point(std::int64_t rank);
  /// Asks the scheduler to let another rank run first. Errors: Cancelled.
  void give_way(std::int64_t rank);
  /// Others run until `duration_ns` have passed. Errors: Cancelled; UsageError if negative.
  void sleep(std::int64_t rank, std::int64_t duration_ns);
  /// Others run until one of them calls `wake(rank)`, or, with a timeout above 0, until so much
  /// time has passed; false then. Errors: Cancelled.
  bool block(std::int64_t rank, std::int64_t timeout_ns);
  void wake(std::int64_t rank);
  /// The rank has ended. Returns who has the turn now.
  std::int64_t end(std::int64_t rank);
  bool is_cancelled(std::int64_t rank) const { return state_of(rank).cancelled; }
  /// From now on every seam that the rank comes to throws Cancelled.
  void give_up(std::int64_t rank) { state_of(rank).cancelled = true; }
  void throw_if_cancelled(std::int64_t rank) const;

 private:
  enum class Phase : std::uint8_t { kReady, kWaiting, kSleeping, kEnded };
  struct RankState {
    Phase phase = Phase::kReady;
    bool cancelled = false;
    std::int64_t wake_ns = -1;  // kSleeping, and kWaiting with a limit; -1: none
    bool timed_out = false;     // what ended its last wait
  };

  RankState& state_of(std::int64_t rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const RankState& state_of(std::int64_t rank) const {
    return ranks_[static_cast<std::size_t>(rank)];
  }
  bool collect_actors();
  bool advance_time();
  Actor pick(std::int64_t current, bool may_stay);
  std::int64_t choose(std::int64_t current, bool may_stay);
  void take_turn(std::int64_t from, std::int64_t to);
  void switch_from(std::int64_t rank, bool may_stay);

  RankExecutor& executor_;
  VirtualClock& clock_;
  TraceRecorder& recorder_;
  GeneratorBank generators_;
  std::unique_ptr<Scheduler> own_scheduler_;
  Scheduler& scheduler_;
  CompletionSource* completions_ = nullptr;  // null: they do not wait for decisions
  std::vector<RankState> ranks_;
  Decision decision_;  // kept for its storage
  Schedule schedule_;
  std::int64_t num_choices_ = 0;
  std::int64_t num_decisions_ = 0;
  std::int64_t decisions_max_;
  bool scheduling_;  // the scheduler is asked; before, choices are the default ones
  bool exhausted_ = false;
  bool abandoned_ = false;
  std::exception_ptr error_;
  bool unwinding_ = false;  // set once: from then on a rank that ends returns to the controller
};

}  // namespace lockstep::sim
