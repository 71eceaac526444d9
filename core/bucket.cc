// SPDX-License-Identifier: Apache-2.0
// Layout of a bucket and the scaling of what goes into it.
#include "core/bucket.h"

#include <torch/types.h>

#include <cstring>

#include "core/check.h"

namespace lockstep {
namespace {

// A 0-dimensional double that takes the other operand's dtype, as a C++ number would.
at::Tensor as_number(double value) {
  at::Tensor number = at::scalar_tensor(value, at::TensorOptions().dtype(at::kDouble));
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

// Note [Short loops beside LibTorch's kernels]
// Models have many small parameters, for which dispatching an operator costs several times the work
// itself. Where two tensors list their elements in one order in memory, plain loops do the same
// IEEE operations on the same numbers, hence give the same bits. Long tensors take LibTorch's
// kernels, which use the machine better.
constexpr std::int64_t kShortLoopMax = 1 << 14;

bool is_plain(const at::Tensor& tensor) {
  return tensor.has_storage() && !tensor.is_neg() && !tensor._is_zerotensor();
}

bool is_small_and_linear(const at::Tensor& a, const at::Tensor& b) {
  const bool has_loop = a.scalar_type() == at::kFloat || a.scalar_type() == at::kDouble;
  return has_loop && a.numel() > 0 && a.numel() <= kShortLoopMax &&
         b.scalar_type() == a.scalar_type() && a.device().is_cpu() && b.device().is_cpu() &&
         a.sizes() == b.sizes() && is_plain(a) && is_plain(b) && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense();
}

// The inner loops have a fixed length so that compilers use vector instructions at -O2.
constexpr std::int64_t kLanes = 8;

template <typename T>
void multiply(const T* __restrict in, T factor, T* __restrict out, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      out[i + lane] = in[i + lane] * factor;
    }
  }
  for (; i < count; ++i) {
    out[i] = in[i] * factor;
  }
}

template <typename T>
void divide(T* values, T divisor, std::int64_t count) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      values[i + lane] /= divisor;
    }
  }
  for (; i < count; ++i) {
    values[i] /= divisor;
  }
}

}  // namespace

at::Tensor view_of(const at::Tensor& flat, const at::Tensor& parameter, std::int64_t offset) {
  if (parameter.is_complex()) {
    // Buckets hold one dtype, so every offset is even.
    const at::Tensor numbers =
        at::view_as_complex(flat.narrow(0, offset, 2 * parameter.numel()).view({-1, 2}));
    return parameter.is_non_overlapping_and_dense()
               ? numbers.as_strided(parameter.sizes(), parameter.strides())
               : numbers.view(parameter.sizes());
  }
  if (parameter.is_non_overlapping_and_dense()) {
    return flat.as_strided(parameter.sizes(), parameter.strides(), flat.storage_offset() + offset);
  }
  return flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

void scale_into(const at::Tensor& view, const at::Tensor& gradient, std::int64_t divisor) {
  if (view.is_complex()) {
    const at::NoGradGuard no_grad;
    return scale_into(at::view_as_real(view), at::view_as_real(gradient.resolve_conj()), divisor);
  }
  const double reciprocal = 1.0 / static_cast<double>(divisor);
  if (is_small_and_linear(view, gradient)) {
    if (view.scalar_type() == at::kFloat) {
      multiply(gradient.data_ptr<float>(), static_cast<float>(reciprocal), view.data_ptr<float>(),
               view.numel());
    } else {
      multiply(gradient.data_ptr<double>(), reciprocal, view.data_ptr<double>(), view.numel());
    }
    return;
  }
  const at::NoGradGuard no_grad;
  at::Tensor out = view;
  at::mul_out(out, gradient, as_number(reciprocal));
}

void scale_in_place(const at::Tensor& view, std::int64_t divisor) {
  if (divisor == 1) {
    return;
  }
  if (view.is_complex()) {
    return scale_in_place(at::view_as_real(view), divisor);
  }
  if (is_small_and_linear(view, view)) {
    if (view.scalar_type() == at::kFloat) {
      divide(view.data_ptr<float>(), static_cast<float>(divisor), view.numel());
    } else {
      divide(view.data_ptr<double>(), static_cast<double>(divisor), view.numel());
    }
    view.unsafeGetTensorImpl()->bump_version();
    return;
  }
  const at::NoGradGuard no_grad;
  view.div_(as_number(static_cast<double>(divisor)));
}

void copy_into(const at::Tensor& target, const at::Tensor& view) {
  if (is_small_and_linear(target, view) && !target.is_inference()) {
    std::memcpy(target.data_ptr(), view.data_ptr(),
                static_cast<std::size_t>(view.numel()) * view.element_size());
    target.unsafeGetTensorImpl()->bump_version();
    return;
  }
  const at::NoGradGuard no_grad;
  target.copy_(view);
}

bool is_same_view(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() &&
         a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

Bucket::Bucket(const std::vector<at::Tensor>& parameters, const std::vector<std::int64_t>& indices,
               bool is_sparse_in)
    : is_sparse(is_sparse_in) {
  LOCKSTEP_USAGE(!indices.empty(), "a bucket must hold at least one parameter");
  LOCKSTEP_USAGE(!is_sparse || indices.size() == 1,
                 "a parameter with sparse gradients cannot share a bucket with {} others",
                 indices.size() - 1);
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
  if (is_sparse) {
    slots.push_back({indices.front(), 0, {}});
    return;
  }
  const std::int64_t scalars = first.is_complex() ? 2 : 1;
  flat = at::empty({scalars * numel}, first.options().requires_grad(false).dtype(
                                          c10::toRealValueType(first.scalar_type())));
  slots.reserve(indices.size());
  std::int64_t offset = 0;
  for (const std::int64_t index : indices) {
    const at::Tensor& parameter = parameters[static_cast<std::size_t>(index)];
    slots.push_back({index, offset, view_of(flat, parameter, offset)});
    offset += scalars * parameter.numel();
  }
}

}  // namespace lockstep
