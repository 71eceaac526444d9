// SPDX-License-Identifier: Apache-2.0
// What one hop of a ring all_reduce does to its elements.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>

#include "core/communicator.h"

namespace lockstep {

/// result[i] = own[i] (op) received[i]. `result` may be `own`; `received` overlaps neither.
///
/// Numbers: sums are rounded once, in the elements' dtype; float16 and bfloat16 are added in float
///          and rounded to nearest even. Integers wrap around. A NaN of the rank's own comes before
///          one that was received, quieted and else unchanged, whatever the compiler does with the
///          operands of an addition. The maximum is own unless own < received, so own wins ties and
///          NaNs.
using RingKernel = void (*)(void* result, const void* own, const void* received, std::size_t numel);

/// Float, Double, Half, BFloat16, Int, Long, Char and Byte; null for all others.
RingKernel find_ring_kernel(at::ScalarType dtype, ReduceOp op);

}  // namespace lockstep
