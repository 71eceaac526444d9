// SPDX-License-Identifier: Apache-2.0
// Which rank runs next.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::sim {

enum class SchedulePolicy { kRoundRobin, kRandom };

struct ScheduleSpec {
  SchedulePolicy policy = SchedulePolicy::kRoundRobin;
  std::uint64_t seed = 0;  ///< kRandom only
};

/// A policy. Deterministic: its answers depend on its construction and the calls so far.
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  /// Picks one of `runnable` (ascending, not empty). `current` is the rank that gives way, or -1;
  /// `may_stay` tells that it could go on itself (it is then in `runnable`).
  virtual std::int64_t next(const std::vector<std::int64_t>& runnable, std::int64_t current,
                            bool may_stay) = 0;
};

std::unique_ptr<Scheduler> make_scheduler(const ScheduleSpec& spec);

}  // namespace lockstep::sim
