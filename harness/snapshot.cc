// SPDX-License-Identifier: Apache-2.0
// Snapshots: one flat copy per list of tensors.
#include "harness/snapshot.h"

#include <torch/types.h>

#include <cstring>

#include "core/check.h"

namespace lockstep::harness {
namespace {

bool same_slot(const TensorSlot& a, const TensorSlot& b) {
  return a.defined == b.defined && a.sparse == b.sparse && a.dtype == b.dtype &&
         a.sizes == b.sizes && a.name == b.name;
}

at::Tensor stored_in_order(const at::Tensor& tensor) {
  if (tensor.is_sparse()) {
    return tensor.to_dense();
  }
  const at::Tensor resolved = tensor.is_complex() ? tensor.resolve_conj() : tensor;
  return resolved.is_contiguous() ? resolved : resolved.contiguous();
}

}  // namespace

at::Tensor elements_of(const at::Tensor& tensor) {
  const at::Tensor values = tensor.is_sparse() ? tensor._values() : tensor;
  return values.is_complex() ? at::view_as_real(values) : values;
}

at::Tensor plain(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return tensor;
  }
  const at::Tensor dense = tensor.is_sparse() ? tensor.to_dense() : tensor;
  return dense.is_complex() ? at::view_as_real(dense.resolve_conj()) : dense;
}

bool SnapshotTaker::fits(const std::vector<at::Tensor>& tensors) const {
  if (slots_ == nullptr) {
    return false;
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSlot& slot = (*slots_)[i];
    if (slot.defined != tensors[i].defined()) {
      return false;
    }
    if (slot.defined && (slot.sparse != tensors[i].is_sparse() ||
                         tensors[i].sizes() != at::IntArrayRef(slot.sizes) ||
                         slot.dtype != c10::toString(tensors[i].scalar_type()))) {
      return false;
    }
  }
  return true;
}

Snapshot SnapshotTaker::take(const std::vector<at::Tensor>& tensors) {
  LOCKSTEP_CHECK(tensors.size() == names_.size(), "{} tensors for {} names", tensors.size(),
                 names_.size());
  if (!fits(tensors)) {
    auto slots = std::make_shared<std::vector<TensorSlot>>();
    total_bytes_ = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      TensorSlot slot;
      slot.name = names_[i];
      slot.defined = tensors[i].defined();
      slot.offset_bytes = total_bytes_;
      if (slot.defined) {
        slot.dtype = c10::toString(tensors[i].scalar_type());
        slot.sizes = tensors[i].sizes().vec();
        slot.sparse = tensors[i].is_sparse();
        slot.num_bytes = tensors[i].numel() * static_cast<std::int64_t>(tensors[i].element_size());
      }
      total_bytes_ += slot.num_bytes;
      slots->push_back(std::move(slot));
    }
    slots_ = std::move(slots);
  }
  Snapshot snapshot;
  snapshot.slots = slots_;
  snapshot.bytes.reserve(static_cast<std::size_t>(total_bytes_));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorSlot& slot = (*slots_)[i];
    if (slot.num_bytes == 0) {
      continue;
    }
    // Slots lie one after the other, so that appending writes each byte once.
    const at::Tensor source = stored_in_order(tensors[i]);
    const auto* const first = static_cast<const std::uint8_t*>(source.data_ptr());
    snapshot.bytes.insert(snapshot.bytes.end(), first, first + slot.num_bytes);
  }
  return snapshot;
}

at::Tensor tensor_of(const Snapshot& snapshot, const TensorSlot& slot) {
  if (!slot.defined) {
    return {};
  }
  at::ScalarType dtype = at::kFloat;
  for (const at::ScalarType candidate :
       {at::kFloat, at::kDouble, at::kLong, at::kInt, at::kBool, at::kByte, at::kHalf,
        at::kComplexFloat, at::kComplexDouble}) {
    if (slot.dtype == c10::toString(candidate)) {
      dtype = candidate;
    }
  }
  at::Tensor tensor = at::empty(slot.sizes, at::TensorOptions().dtype(dtype));
  LOCKSTEP_CHECK(static_cast<std::int64_t>(tensor.nbytes()) == slot.num_bytes,
                 "slot {} of {} holds {} bytes", slot.name, slot.dtype, slot.num_bytes);
  if (slot.num_bytes > 0) {
    std::memcpy(tensor.data_ptr(), snapshot.bytes.data() + slot.offset_bytes,
                static_cast<std::size_t>(slot.num_bytes));
  }
  return tensor;
}

bool same_bits(const Snapshot& a, const Snapshot& b) {
  if (a.bytes != b.bytes) {
    return false;
  }
  if (a.slots == b.slots) {
    return true;
  }
  if (a.slots == nullptr || b.slots == nullptr || a.slots->size() != b.slots->size()) {
    return false;
  }
  for (std::size_t i = 0; i < a.slots->size(); ++i) {
    if (!same_slot((*a.slots)[i], (*b.slots)[i])) {
      return false;
    }
  }
  return true;
}

}  // namespace lockstep::harness
