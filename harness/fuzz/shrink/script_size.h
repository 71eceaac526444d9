// SPDX-License-Identifier: Apache-2.0
// How much there is in a script.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "harness/case.h"

namespace lockstep::harness::fuzz {

/// Compared member by member. There is no endless chain of smaller ones: counts are not negative,
/// and of texts there are finitely many of one length.
struct Measure {
  /// Ranks, steps, entries of [[at]] and [[fault]], blocks (of an mlp: layers), their sizes added
  /// up, samples per rank and step, micro-batches, forwards per backward, how many schedules (0:
  /// the default one, 1: one that is given, 2: more), characters of `text`.
  std::array<std::int64_t, 10> counts{};
  std::string text;  ///< the scenario file without title and expectation
  friend bool operator<(const Measure& a, const Measure& b) {
    return a.counts != b.counts ? a.counts < b.counts : a.text < b.text;
  }
};

/// Of cases with contradictions, too.
Measure measure(const Case& value);

}  // namespace lockstep::harness::fuzz
