// SPDX-License-Identifier: Apache-2.0
// Sums sparse gradients over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/communicator.h"
#include "core/pending_tensor.h"

namespace lockstep {

/// True for gradients as embeddings give them: sparse along the first dimension only.
bool has_sparse_rows(const at::Tensor& tensor);

/// No rows, in the sizes, dtype and device of the dense tensor `like`.
at::Tensor no_sparse_rows(const at::Tensor& like);

/// A coalesced copy of `tensor`, its values divided by `divisor` (true division; 1 divides
/// nothing). Values of one row are divided before they are added up (G8).
at::Tensor divided_rows(const at::Tensor& tensor, std::int64_t divisor);

/// The sum over all ranks, coalesced.
///
/// Three all-gathers: of the numbers of rows at once, of indices and of values when the result is
/// awaited, both filled up to the longest; none of the latter if no rank has a row. Rows are added
/// in rank order, so all ranks hold the same bits.
/// Shapes: `tensor` is coalesced and sparse along the first dimension only, of equal sizes and
///         dtype on all ranks; the number of rows may differ.
PendingTensor sparse_all_reduce(Communicator& communicator, const at::Tensor& tensor,
                                CollectiveTag tag);

}  // namespace lockstep
