// SPDX-License-Identifier: Apache-2.0
// How many schedules one run stands for.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/scheduler.h"

namespace lockstep::sim {

/// One decision of a run: what there was, without the actors, and what was chosen.
struct Choice {
  Actor actor = 0;
  // As in Decision, before it.
  std::vector<std::int64_t> issued, completed;
  std::int64_t now_ns = 0;
  bool failed = false;
};

/// The number of orders in which what was chosen can happen, the choices of one rank in their own:
/// the linear extensions of the partial order that they have (those of a rank follow one another; a
/// collective completes after every rank has issued it; what happened before the clock moved stays
/// before it). These are the schedules that differ from this one only in the order of independent
/// actors; exact up to 2^53, then rounded.
///
/// Dynamic programming over how far each rank has come. Nothing if that takes more than
/// `states_max` states, or if a collective failed, for that wakes ranks that wait.
std::optional<double> count_orders(const std::vector<Choice>& run,
                                   std::int64_t states_max = 1'000'000);

}  // namespace lockstep::sim
