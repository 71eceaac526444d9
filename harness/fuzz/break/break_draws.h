// SPDX-License-Identifier: Apache-2.0
// Draws that the planters of mistakes share.
#pragma once

#include <rapidcheck.h>

#include <string>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness::fuzz {

/// A number from `least` to `most`. All draws are made inside of a generator of nominal size.
inline std::int64_t number(std::int64_t least, std::int64_t most) {
  return *rc::gen::inRange<std::int64_t>(least, most + 1);
}

inline bool one_in(std::int64_t count) { return number(1, count) == 1; }

template <typename T>
T any_of(const std::vector<T>& values) {
  return values[static_cast<std::size_t>(number(0, static_cast<std::int64_t>(values.size()) - 1))];
}

/// All ranks (empty), or some of them.
std::vector<std::int64_t> any_ranks(const Case& value);
/// Some ranks, but not all; with one rank only there are none.
std::vector<std::int64_t> some_ranks(const Case& value);
/// One step from `least` on.
std::int64_t any_step(const Case& value, std::int64_t least = 0);

/// Plants a fault; the case is settled (settled.h) and has at least two ranks, mostly.
void plant_fault(Case& value, const std::string& kind);
/// Plants an [[at]] entry.
void plant_event(Case& value, const std::string& action);
/// Plants an option that is missing or wrong.
void plant_option(Case& value, const std::string& option);
/// Plants a [launch] whose processes do not meet, or not all of them.
void plant_launch(Case& value, const std::string& mistake);

/// Models in which some mistakes have something to spoil.
ModelSpec branches_model();    ///< trunk, branches "left" and "right" that are added up or heads
ModelSpec normalised_model();  ///< with a batch_norm, and so with buffers
ModelSpec recomputed_model();  ///< with a re-entrant checkpoint that is used twice

}  // namespace lockstep::harness::fuzz
