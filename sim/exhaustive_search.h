// SPDX-License-Identifier: Apache-2.0
// Walks through all schedules of a program, one run after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "sim/order_count.h"
#include "sim/scheduler.h"

namespace lockstep::sim {

/// Depth-first over the choices of a program that always does the same under the same schedule.
///
/// With reduction, of all schedules that differ only in the order of independent actors (those of
/// different ranks), one is run to its end: a rank that is settled goes alone, for nothing can
/// interfere with it; elsewhere sleep sets keep a swap of independent neighbours from being tried
/// again (Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems", 1996). A
/// run in which only such swaps are left is given up (kAbandon).
///
/// Use: while (begin()) { run a world with this as its scheduler; }
/// Threads: as a scheduler, whoever has the turn.
class ExhaustiveSearch final : public Scheduler {
 public:
  explicit ExhaustiveSearch(bool reduce) : reduce_(reduce) {}

  /// Sets out on the next schedule; false when there is none left.
  bool begin();
  Actor next(const Decision& decision) override;

  /// Runs that went to their end, and those that were given up as repetitions.
  std::int64_t num_schedules() const { return num_begun_ - num_abandoned_; }
  std::int64_t num_abandoned() const { return num_abandoned_; }
  /// How many schedules there are without reduction, as far as begin() has come: the orders that
  /// the runs so far stand for. Nothing where that could not be counted (order_count.h).
  std::optional<double> num_orders() const { return num_orders_; }

 private:
  /// A decision on the current path.
  struct Node {
    Choice choice;
    std::vector<Actor> untried;  // to be chosen later
    std::vector<Actor> asleep;   // what would only repeat a schedule if chosen here
  };

  Node open(const Decision& decision) const;
  void count_orders_of_run();

  bool reduce_;
  bool started_ = false;
  std::vector<Node> path_;
  std::size_t depth_ = 0;  // of the decision that comes next
  std::int64_t num_begun_ = 0;
  std::int64_t num_abandoned_ = 0;
  bool given_up_ = false;  // the current run
  std::optional<double> num_orders_ = 0.0;
};

}  // namespace lockstep::sim
