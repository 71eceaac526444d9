// SPDX-License-Identifier: Apache-2.0
// An all_reduce that adds in the order of Gloo's ring.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/communicator.h"

namespace lockstep::sim {

/// Elements per chunk of the ring; element e belongs to chunk e / ring_chunk_numel. The last chunks
/// may be short or empty. Preconditions: all arguments > 0.
std::int64_t ring_chunk_numel(std::int64_t world_size, std::int64_t numel,
                              std::int64_t element_bytes);

/// Float, Double, Half, BFloat16, Int, Long, Char and Byte can be reduced.
bool is_ring_dtype(at::ScalarType dtype);

/// Reduces the tensors of all ranks in place; all end with the same bits, those that Gloo's ring
/// would leave (NaN payloads included, as on x86). Half and BFloat16 are added in float and rounded
/// at each hop; this leaves out the terms that Gloo's own float16 addition loses.
///
/// Shapes: `by_rank` is [world_size]; CPU, contiguous, one numel and one dtype that passes
///         `is_ring_dtype`; no two share memory.
void ring_all_reduce(const std::vector<at::Tensor>& by_rank, ReduceOp op);

}  // namespace lockstep::sim
