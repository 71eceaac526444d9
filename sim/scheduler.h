// SPDX-License-Identifier: Apache-2.0
// Which rank runs next.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::sim {

enum class SchedulePolicy {
  kRoundRobin,  ///< a rank runs until it blocks or gives way; then the next in cyclic order
  kRandom,      ///< at every yield point any runnable rank, uniformly
};

struct ScheduleSpec {
  SchedulePolicy policy = SchedulePolicy::kRoundRobin;
  std::uint64_t seed = 0;  ///< kRandom only
};

/// A policy. Deterministic: its answers depend on its construction and the calls so far.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  /// Picks one of `runnable` (ascending, not empty). `current` is the rank that has the turn, or
  /// -1. `may_stay`: it only passes a yield point and may go on (it is in `runnable`). Otherwise it
  /// blocks or has ended (it is not in `runnable`), or asks to give way (it is, and may be picked).
  virtual std::int64_t next(const std::vector<std::int64_t>& runnable, std::int64_t current,
                            bool may_stay) = 0;
};

std::unique_ptr<Scheduler> make_scheduler(const ScheduleSpec& spec);

}  // namespace lockstep::sim
