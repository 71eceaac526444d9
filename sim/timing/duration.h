// SPDX-License-Identifier: Apache-2.0
// Predicted time: whole picoseconds, so that sums do not depend on their order.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/check.h"

namespace lockstep::sim::timing {

// Note [Picoseconds]
// Every cost is rounded to a picosecond once, when it is made; from then on there are only sums and
// maxima of integers, which are exact. That is why folding ranks into classes gives the very
// numbers of the simulation of every rank, and why no compiler or machine gives others. A
// picosecond is what a link of 1000 Gbit/s needs for an eighth of a byte.

/// Picoseconds. 2^63 of them are 106 days.
using Ps = std::int64_t;

/// Longer times are refused, so that sums cannot overflow: about 26 days.
inline constexpr Ps kLongestPs = std::int64_t{1} << 61;

inline constexpr double kPsPerSecond = 1e12;
inline constexpr double kPsPerMs = 1e9;
inline constexpr double kPsPerUs = 1e6;

/// To the nearest picosecond. Errors: UsageError unless 0 <= ps <= kLongestPs.
inline Ps rounded_ps(double ps) {
  LOCKSTEP_USAGE(ps >= 0 && ps <= static_cast<double>(kLongestPs),
                 "a time of {:.3g} s cannot be simulated; expected 0 to {:.3g} s",
                 ps / kPsPerSecond, static_cast<double>(kLongestPs) / kPsPerSecond);
  return std::llround(ps);
}

/// `ps` times `factor`. Grows with either, so the slowest of several is the one with the largest
/// factor. Errors: UsageError as rounded_ps.
inline Ps scaled(Ps ps, double factor) {
  return factor == 1.0 ? ps : rounded_ps(static_cast<double>(ps) * factor);
}

inline double to_ms(Ps ps) { return static_cast<double>(ps) / kPsPerMs; }

}  // namespace lockstep::sim::timing
