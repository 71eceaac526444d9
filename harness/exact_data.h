// SPDX-License-Identifier: Apache-2.0
// The numbers of exact cases. See Note [Exact data] in harness/dataset.h.
#pragma once

#include <cstdint>

#include "core/rng.h"
#include "harness/case.h"

namespace lockstep::harness {

/// -1 and 1 once each in `out_of` draws, else 0: zeros keep sums short of bits.
double draw_exact_unit(CounterRng& rng, std::int64_t out_of);

/// Powers of two that exact inputs and targets are multiples of: such that one step moves weights,
/// which are -1, 0 or 1 at first, by about as much as they are.
struct ExactScale {
  double input = 1.0;
  double target = 1.0;
};
/// `output_numel`: elements of one sample's output (of the first head).
ExactScale exact_scale(const Case& value, std::int64_t output_numel);

}  // namespace lockstep::harness
