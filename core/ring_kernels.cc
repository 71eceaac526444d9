// SPDX-License-Identifier: Apache-2.0
// Element-wise sums and maxima with every bit defined.
#include "core/ring_kernels.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace lockstep {
namespace {

// Elements handled at once: a fixed trip count lets the compiler use vector instructions.
constexpr std::size_t kBlockNumel = 64;

/// The bits of a floating-point type, and the one that makes a NaN quiet.
template <typename T>
struct FloatFormat;
template <>
struct FloatFormat<float> {
  using Bits = std::uint32_t;
  static constexpr Bits kQuiet = Bits{1} << 22;
};
template <>
struct FloatFormat<double> {
  using Bits = std::uint64_t;
  static constexpr Bits kQuiet = Bits{1} << 51;
};
template <>
struct FloatFormat<c10::Half> {
  using Bits = std::uint16_t;
  static constexpr Bits kQuiet = Bits{1} << 9;
};
template <>
struct FloatFormat<c10::BFloat16> {
  using Bits = std::uint16_t;
  static constexpr Bits kQuiet = Bits{1} << 6;
};

/// The type in which T is added and compared.
template <typename T>
using Wide = std::conditional_t<std::is_arithmetic_v<T>, T, float>;

template <typename T>
bool is_nan(T value) {
  const auto wide = static_cast<Wide<T>>(value);
  return wide != wide;
}

/// What a sum that came out as NaN must be. Which operand's NaN the processor keeps depends on the
/// order in which the compiler puts them; inf - inf is the processor's own NaN.
template <typename T>
T resolve_nan(T own, T received, T sum) {
  if (!is_nan(own) && !is_nan(received)) {
    return sum;
  }
  const T source = is_nan(own) ? own : received;
  typename FloatFormat<T>::Bits bits;
  std::memcpy(&bits, &source, sizeof(bits));
  bits = static_cast<typename FloatFormat<T>::Bits>(bits | FloatFormat<T>::kQuiet);
  T result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

template <typename T>
T add(T own, T received) {
  return static_cast<T>(static_cast<Wide<T>>(own) + static_cast<Wide<T>>(received));
}

template <typename T>
void sum_floats(void* result, const void* own, const void* received, std::size_t numel) {
  auto* out = static_cast<T*>(result);
  const auto* left = static_cast<const T*>(own);
  const auto* right = static_cast<const T*>(received);
  for (std::size_t first = 0; first < numel; first += kBlockNumel) {
    const std::size_t block_numel = std::min(kBlockNumel, numel - first);
    T sum[kBlockNumel];
    std::uint32_t num_nan = 0;
    if (block_numel == kBlockNumel) {
      for (std::size_t i = 0; i < kBlockNumel; ++i) {
        sum[i] = add(left[first + i], right[first + i]);
        num_nan += is_nan(sum[i]) ? 1 : 0;
      }
    } else {
      for (std::size_t i = 0; i < block_numel; ++i) {
        sum[i] = add(left[first + i], right[first + i]);
        num_nan += is_nan(sum[i]) ? 1 : 0;
      }
    }
    for (std::size_t i = 0; num_nan != 0 && i < block_numel; ++i) {
      if (is_nan(sum[i])) {
        sum[i] = resolve_nan(left[first + i], right[first + i], sum[i]);
      }
    }
    std::memcpy(out + first, sum, block_numel * sizeof(T));
  }
}

template <typename T>
void sum_integers(void* result, const void* own, const void* received, std::size_t numel) {
  using Unsigned = std::make_unsigned_t<T>;
  auto* out = static_cast<Unsigned*>(result);
  const auto* left = static_cast<const Unsigned*>(own);
  const auto* right = static_cast<const Unsigned*>(received);
  for (std::size_t i = 0; i < numel; ++i) {
    out[i] = static_cast<Unsigned>(left[i] + right[i]);
  }
}

template <typename T>
void maximum(void* result, const void* own, const void* received, std::size_t numel) {
  auto* out = static_cast<T*>(result);
  const auto* left = static_cast<const T*>(own);
  const auto* right = static_cast<const T*>(received);
  for (std::size_t i = 0; i < numel; ++i) {
    out[i] = static_cast<Wide<T>>(left[i]) < static_cast<Wide<T>>(right[i]) ? right[i] : left[i];
  }
}

template <typename T>
RingKernel kernel_for(ReduceOp op) {
  if (op == ReduceOp::kMax) {
    return &maximum<T>;
  }
  if constexpr (std::is_integral_v<T>) {
    return &sum_integers<T>;
  } else {
    return &sum_floats<T>;
  }
}

}  // namespace

RingKernel find_ring_kernel(at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kFloat:
      return kernel_for<float>(op);
    case at::kDouble:
      return kernel_for<double>(op);
    case at::kHalf:
      return kernel_for<c10::Half>(op);
    case at::kBFloat16:
      return kernel_for<c10::BFloat16>(op);
    case at::kInt:
      return kernel_for<std::int32_t>(op);
    case at::kLong:
      return kernel_for<std::int64_t>(op);
    case at::kChar:
      return kernel_for<std::int8_t>(op);
    case at::kByte:
      return kernel_for<std::uint8_t>(op);
    default:
      return nullptr;
  }
}

}  // namespace lockstep
