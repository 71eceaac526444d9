// SPDX-License-Identifier: Apache-2.0
// The sizes of numbers that keep an exact case exact.
#pragma once

#include "harness/case.h"

namespace lockstep::harness {

/// Powers of two that exact inputs and targets are multiples of.
struct ExactScale {
  double input = 1.0;
  double target = 1.0;
};
ExactScale exact_scale(const Case& value, std::int64_t output_numel);

}  // namespace lockstep::harness
