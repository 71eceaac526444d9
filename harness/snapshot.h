// SPDX-License-Identifier: Apache-2.0
// Taking snapshots of tensors, and reading them back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/run.h"

namespace lockstep::harness {

/// Takes snapshots of one list of tensors, step after step; the slots are shared between snapshots
/// for as long as sizes, dtypes and definedness stay the same.
class SnapshotTaker {
 public:
  /// `names[i]` is the name of `tensors[i]` in every later call of `take`.
  explicit SnapshotTaker(std::vector<std::string> names) : names_(std::move(names)) {}

  /// Copies the bits of `tensors`, in order; undefined ones become slots without bytes, sparse ones
  /// are copied with zeros for absent rows.
  Snapshot take(const std::vector<at::Tensor>& tensors);

 private:
  bool fits(const std::vector<at::Tensor>& tensors) const;

  std::vector<std::string> names_;
  std::shared_ptr<const std::vector<TensorSlot>> slots_;
  std::int64_t total_bytes_ = 0;
};

/// What a tensor stores, as real numbers that can be written to: the values of a sparse tensor's
/// rows, complex numbers as pairs. Otherwise the tensor itself.
at::Tensor elements_of(const at::Tensor& tensor);

/// Dense and real, whatever the tensor is: absent rows as zeros, complex numbers as pairs. A copy
/// only where the tensor is sparse; undefined stays undefined.
at::Tensor plain(const at::Tensor& tensor);

/// A copy of one slot as a contiguous tensor; undefined for a slot without bytes.
at::Tensor tensor_of(const Snapshot& snapshot, const TensorSlot& slot);

/// True if both hold the same slots (names, dtypes, sizes, definedness) and the same bytes.
bool same_bits(const Snapshot& a, const Snapshot& b);

}  // namespace lockstep::harness
