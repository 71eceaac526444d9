// SPDX-License-Identifier: Apache-2.0
// Bit-for-bit comparison of snapshots, and the distance of two floating-point numbers in ULP.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/outcome.h"
#include "harness/run.h"

namespace lockstep::harness {

/// Number of representable values between `a` and `b`; 0 for equal values and for +0 and -0;
/// -1 if either is NaN, unless both are.
std::int64_t ulp_distance(float a, float b);
std::int64_t ulp_distance(double a, double b);

enum class Equality {
  kBits,               ///< every bit
  kValues,             ///< 0 ULP: +0 equals -0, NaN equals NaN
  kValuesOrUndefined,  ///< the same, and an undefined tensor equals zeros
};

/// The first tensor, and in it the first element, where the two differ. Fills tensor, element,
/// expected, actual, their bits, ulp and num_elements_differ of a Divergence.
/// A tensor that is defined on one side only differs, and so does one of another dtype or size.
std::optional<Divergence> first_difference(const Snapshot& expected, const Snapshot& actual,
                                           Equality equality);

}  // namespace lockstep::harness
