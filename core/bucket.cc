// SPDX-License-Identifier: Apache-2.0
// Layout of a bucket and the scaling of what goes into it.
#include "core/bucket.h"

#include <torch/torch.h>

#include "core/check.h"

namespace lockstep {
namespace {

// A 0-dimensional double that takes the other operand's dtype, as a C++ number would.
at::Tensor as_number(double value) {
  at::Tensor number = at::scalar_tensor(value, at::TensorOptions().dtype(at::kDouble));
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

at::Tensor view_of(const at::Tensor& flat, const at::Tensor& parameter, std::int64_t offset) {
  if (parameter.is_non_overlapping_and_dense()) {
    return flat.as_strided(parameter.sizes(), parameter.strides(), offset);
  }
  return flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

}  // namespace

void scale_into(const at::Tensor& view, const at::Tensor& gradient, std::int64_t divisor) {
  const at::NoGradGuard no_grad;
  at::Tensor out = view;
  at::mul_out(out, gradient, as_number(1.0 / static_cast<double>(divisor)));
}

void scale_in_place(const at::Tensor& view, std::int64_t divisor) {
  const at::NoGradGuard no_grad;
  view.div_(as_number(static_cast<double>(divisor)));
}

bool is_same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() &&
         a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

Bucket::Bucket(const std::vector<at::Tensor>& parameters,
               const std::vector<std::int64_t>& indices) {
  LOCKSTEP_USAGE(!indices.empty(), "a bucket must hold at least one parameter");
  const at::NoGradGuard no_grad;
  const at::Tensor& first = parameters.at(static_cast<std::size_t>(indices.front()));
  std::int64_t numel = 0;
  for (const std::int64_t index : indices) {
    const at::Tensor& parameter = parameters.at(static_cast<std::size_t>(index));
    LOCKSTEP_USAGE(parameter.scalar_type() == first.scalar_type(),
                   "parameters {} and {} of different dtypes cannot share a bucket",
                   indices.front(), index);
    LOCKSTEP_USAGE(parameter.device() == first.device(),
                   "parameters {} and {} on different devices cannot share a bucket",
                   indices.front(), index);
    numel += parameter.numel();
  }
  flat = at::empty({numel}, first.options().requires_grad(false));
  slots.reserve(indices.size());
  std::int64_t offset = 0;
  for (const std::int64_t index : indices) {
    const at::Tensor& parameter = parameters[static_cast<std::size_t>(index)];
    slots.push_back({index, offset, view_of(flat, parameter, offset)});
    offset += parameter.numel();
  }
}

}  // namespace lockstep
