// SPDX-License-Identifier: Apache-2.0
// One flat buffer for the gradients of several parameters, and how gradients get in and out.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/pending_tensor.h"

namespace lockstep {

// Note [Division before the sum]
// Every rank divides its gradient by the number of ranks W before the all-reduce sums (G1), so that
// no intermediate value is larger than the largest gradient. A gradient that is copied into the
// bucket is multiplied by 1/W, computed in double and rounded to the gradient's type once; one that
// already lies in the bucket is divided by W in place (G3). For W that is no power of two the two
// can differ in the last bit.

/// Writes `gradient` * (1 / divisor) into `view`, whatever their strides (G3, copy). Complex
/// numbers are scaled part by part. Shapes: equal sizes and dtype.
void scale_into(const at::Tensor& view, const at::Tensor& gradient, std::int64_t divisor);

/// Divides `view` by `divisor` in place (G3, alias).
void scale_in_place(const at::Tensor& view, std::int64_t divisor);

/// Copies `view` into `target`, whatever their strides. Shapes: equal sizes and dtype.
void copy_into(const at::Tensor& target, const at::Tensor& view);

/// True if both denote the same elements of the same storage in the same shape.
bool is_same_view(const at::Tensor& a, const at::Tensor& b);

/// The part of a bucket's buffer `flat` that belongs to `parameter` and starts at element `offset`.
/// Shapes: the parameter's sizes and dtype, and its strides if they are dense, else those of a
///         contiguous tensor (C17).
at::Tensor view_of(const at::Tensor& flat, const at::Tensor& parameter, std::int64_t offset);

/// The flat buffer of one bucket with one view per parameter; or one sparse gradient (C18).
///
/// Shapes: `flat` is [sum of numels], packed without gaps (C16); real, with two elements per
/// complex
///         number (C19).
struct Bucket {
  struct Slot {
    std::int64_t parameter = 0;  ///< parameter index
    std::int64_t offset = 0;     ///< first element in `flat`
    at::Tensor view;             ///< of `flat`; undefined in a sparse bucket
  };

  /// Errors: UsageError if `indices` is empty or mixes dtypes or devices, or if a sparse bucket is
  /// to
  ///         hold several parameters (C15).
  Bucket(const std::vector<at::Tensor>& parameters, const std::vector<std::int64_t>& indices,
         bool is_sparse = false);

  /// What is reduced: `flat` or `sparse`.
  const at::Tensor& buffer() const { return is_sparse ? sparse : flat; }

  bool is_sparse = false;
  at::Tensor flat;    ///< undefined in a sparse bucket
  at::Tensor sparse;  ///< this rank's gradient, then the result; sparse buckets only
  std::vector<Slot> slots;
  std::int64_t num_pending = 0;  ///< parameters that are not ready yet
  PendingTensor pending;         ///< the reduction in flight, if any
};

}  // namespace lockstep
