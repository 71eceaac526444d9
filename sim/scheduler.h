// SPDX-License-Identifier: Apache-2.0
// What happens next: which rank runs, or at which rank a collective completes.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::sim {

/// Something that can happen next: rank r goes on (r), or the next collective in flight completes
/// at rank r (`completion_at(r)`). The two of one rank depend on each other; those of different
/// ranks do not, except that a collective can complete only when all ranks have issued it.
using Actor = std::int64_t;

constexpr Actor kFirstCompletion = 1 << 20;
/// Not an actor: the run is given up.
constexpr Actor kAbandon = std::numeric_limits<Actor>::min();

constexpr Actor completion_at(std::int64_t rank) { return kFirstCompletion + rank; }
constexpr bool is_completion(Actor actor) { return actor >= kFirstCompletion; }
constexpr std::int64_t rank_of(Actor actor) {
  return is_completion(actor) ? actor - kFirstCompletion : actor;
}

/// What there is to choose from.
struct Decision {
  std::vector<Actor> actors;  ///< ascending, not empty: ranks that can run, then completions
  std::int64_t current = -1;  ///< the rank that has the turn, or -1
  /// `current` only passes a yield point and may go on (it is in `actors`). Otherwise it blocks or
  /// has ended (it is not), or asks to give way (it is, and may be picked).
  bool may_stay = false;
  /// By rank: all that it has issued has been issued by everybody, so that nothing which other
  /// ranks do can bring it a completion before it goes on itself.
  std::vector<bool> settled = {};
  /// By rank: collectives that it has issued, and that have completed there.
  std::vector<std::int64_t> issued = {}, completed = {};
  std::int64_t now_ns = 0;  ///< virtual time
  bool failed = false;      ///< ranks disagreed about a collective, or one gave it up
};

/// What happens if nobody has a reason to choose otherwise: completions at once, in order of ranks;
/// a rank runs until it blocks or gives way; then the next in cyclic order.
Actor default_choice(const Decision& decision);

/// A choice that was not the default one. `index` counts decisions with more than one actor.
struct Deviation {
  std::int64_t index = 0;
  Actor actor = 0;
  friend bool operator==(const Deviation& a, const Deviation& b) {
    return a.index == b.index && a.actor == b.actor;
  }
};

/// A schedule is its deviations, ascending. As text: "12:1 15:c0" (at decision 12 rank 1 runs; at
/// 15 a collective completes at rank 0); the default schedule is "".
using Schedule = std::vector<Deviation>;
std::string to_string(const Schedule& schedule);
/// Errors: UsageError naming the part that is none, or not in ascending order.
Schedule parse_schedule(const std::string& text);

enum class SchedulePolicy {
  kRoundRobin,  ///< always the default choice
  kRandom,      ///< any actor, uniformly
  kPct,     ///< the actor of highest priority; priorities are random and change `depth` - 1 times
  kReplay,  ///< a given schedule
};

struct ScheduleSpec {
  SchedulePolicy policy = SchedulePolicy::kRoundRobin;
  std::uint64_t seed = 0;  ///< kRandom, kPct
  std::int64_t run = 0;    ///< kRandom, kPct: which of the schedules drawn from this seed, from 0
  /// kPct: a fault that needs this many ordering constraints is found with a probability of at
  /// least 1 / (actors * decisions^(depth - 1)) per run.
  std::int64_t depth = 3;
  std::int64_t decisions = 1000;  ///< kPct: how many a run is thought to take (num_choices)
  Schedule schedule;              ///< kReplay
};

/// A policy. Deterministic: its answers depend on its construction and the calls so far.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  /// One of the decision's actors, or kAbandon.
  virtual Actor next(const Decision& decision) = 0;
};

std::unique_ptr<Scheduler> make_scheduler(const ScheduleSpec& spec);

}  // namespace lockstep::sim
