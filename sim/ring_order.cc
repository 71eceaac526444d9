// SPDX-License-Identifier: Apache-2.0
// The order of additions of Gloo's ring all_reduce, without a network.
//
// The elements are cut into world_size chunks. Chunk c travels the ring downwards from rank c - 1:
// every rank adds its own values to the partial sum it receives (left operand: its own), rank c
// comes last and owns the result, which is then copied to everybody. All rank numbers are modulo
// world_size. With four ranks:
//
//   chunk 0: ((x3 + x2) + x1) + x0      chunk 2: ((x1 + x0) + x3) + x2
//   chunk 1: ((x0 + x3) + x2) + x1      chunk 3: ((x2 + x1) + x0) + x3
//
// Chunks are made of segments of at most 1 MiB, a multiple of world_size of them and at least two
// per rank; that only matters for where the chunks' borders lie.
#include "sim/ring_order.h"

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/check.h"

namespace lockstep::sim {
namespace {

constexpr std::int64_t kSegmentBytesMax = 1 << 20;
// Elements handled at once: a fixed trip count lets the compiler use vector instructions.
constexpr std::int64_t kBlockNumel = 64;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::int64_t round_up(std::int64_t a, std::int64_t b) { return ceil_div(a, b) * b; }

// What a sum of two T is computed in before it is rounded to T.
template <typename T>
struct Arithmetic {
  using Type = T;
};
template <>
struct Arithmetic<c10::Half> {
  using Type = float;
};
template <>
struct Arithmetic<c10::BFloat16> {
  using Type = float;
};
template <typename T>
using Wide = typename Arithmetic<T>::Type;

// Which operand's NaN survives an addition depends on how the compiler orders them. The rule is
// applied by hand: the rank's own NaN first, else the received one, quieted.
template <typename T>
T resolve_nan(T own, T received, T sum) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  constexpr Bits kQuiet = Bits{1} << (sizeof(T) == 4 ? 22 : 51);
  const T source = own != own ? own : received;
  if (source == source) {
    return sum;  // inf - inf: the processor's own NaN
  }
  Bits bits;
  std::memcpy(&bits, &source, sizeof(bits));
  bits |= kQuiet;
  T result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

template <typename T>
T add(T own, T received) {
  if constexpr (std::is_integral_v<T>) {
    // Wraps around, as the hardware's sums do.
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(
        static_cast<Unsigned>(static_cast<Unsigned>(own) + static_cast<Unsigned>(received)));
  } else {
    const auto left = static_cast<Wide<T>>(own);
    const auto right = static_cast<Wide<T>>(received);
    const Wide<T> sum = left + right;
    return static_cast<T>(sum != sum ? resolve_nan(left, right, sum) : sum);
  }
}

// received[i] = own[i] + received[i] for a whole block.
template <typename T>
void add_block(const T* __restrict own, T* __restrict received) {
  if constexpr (std::is_integral_v<T>) {
    for (std::int64_t i = 0; i < kBlockNumel; ++i) {
      received[i] = add(own[i], received[i]);
    }
  } else {
    using Count = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    T sum[kBlockNumel];
    Count num_nan = 0;
    for (std::int64_t i = 0; i < kBlockNumel; ++i) {
      sum[i] = own[i] + received[i];
      num_nan += sum[i] != sum[i] ? Count{1} : Count{0};
    }
    if (num_nan == 0) {
      std::memcpy(received, sum, sizeof(sum));
      return;
    }
    for (std::int64_t i = 0; i < kBlockNumel; ++i) {
      received[i] = add(own[i], received[i]);
    }
  }
}

template <typename T>
void add_range(const T* own, T* received, std::int64_t numel) {
  std::int64_t i = 0;
  if constexpr (std::is_same_v<T, Wide<T>>) {
    for (; i + kBlockNumel <= numel; i += kBlockNumel) {
      add_block(own + i, received + i);
    }
  }
  for (; i < numel; ++i) {
    received[i] = add(own[i], received[i]);
  }
}

// The rank's own value wins ties and NaNs.
template <typename T>
void max_range(const T* own, T* received, std::int64_t numel) {
  for (std::int64_t i = 0; i < numel; ++i) {
    received[i] =
        static_cast<Wide<T>>(own[i]) < static_cast<Wide<T>>(received[i]) ? received[i] : own[i];
  }
}

template <typename T>
void reduce_chunks(const std::vector<at::Tensor>& by_rank, ReduceOp op) {
  const auto world_size = static_cast<std::int64_t>(by_rank.size());
  const std::int64_t numel = by_rank.front().numel();
  const std::int64_t chunk_numel =
      ring_chunk_numel(world_size, numel, static_cast<std::int64_t>(sizeof(T)));
  std::vector<T*> x;
  for (const at::Tensor& tensor : by_rank) {
    x.push_back(static_cast<T*>(tensor.data_ptr()));
  }
  for (std::int64_t chunk = 0; chunk * chunk_numel < numel; ++chunk) {
    const std::int64_t first = chunk * chunk_numel;
    const std::int64_t length = std::min(chunk_numel, numel - first);
    // The partial sum lives in the chunk of the rank that starts, whose values it replaces.
    T* partial = x[static_cast<std::size_t>((chunk + world_size - 1) % world_size)] + first;
    for (std::int64_t hop = 2; hop <= world_size; ++hop) {
      const std::int64_t rank = (chunk + 2 * world_size - hop) % world_size;
      const T* own = x[static_cast<std::size_t>(rank)] + first;
      if (op == ReduceOp::kSum) {
        add_range(own, partial, length);
      } else {
        max_range(own, partial, length);
      }
    }
    for (T* values : x) {
      if (values + first != partial) {
        std::memcpy(values + first, partial, static_cast<std::size_t>(length) * sizeof(T));
      }
    }
  }
}

}  // namespace

std::int64_t ring_chunk_numel(std::int64_t world_size, std::int64_t numel,
                              std::int64_t element_bytes) {
  const std::int64_t total_bytes = numel * element_bytes;
  const std::int64_t segment_bytes_max =
      element_bytes * std::max<std::int64_t>(1, kSegmentBytesMax / element_bytes);
  const std::int64_t num_segments =
      round_up(std::max(ceil_div(total_bytes, segment_bytes_max), 2 * world_size), world_size);
  const std::int64_t segment_bytes = round_up(ceil_div(total_bytes, num_segments), element_bytes);
  return (num_segments / world_size) * (segment_bytes / element_bytes);
}

bool is_ring_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kInt:
    case at::kLong:
    case at::kChar:
    case at::kByte:
      return true;
    default:
      return false;
  }
}

void ring_all_reduce(const std::vector<at::Tensor>& by_rank, ReduceOp op) {
  LOCKSTEP_CHECK(!by_rank.empty(), "no ranks");
  if (by_rank.size() == 1 || by_rank.front().numel() == 0) {
    return;
  }
  switch (by_rank.front().scalar_type()) {
    case at::kFloat:
      return reduce_chunks<float>(by_rank, op);
    case at::kDouble:
      return reduce_chunks<double>(by_rank, op);
    case at::kHalf:
      return reduce_chunks<c10::Half>(by_rank, op);
    case at::kBFloat16:
      return reduce_chunks<c10::BFloat16>(by_rank, op);
    case at::kInt:
      return reduce_chunks<std::int32_t>(by_rank, op);
    case at::kLong:
      return reduce_chunks<std::int64_t>(by_rank, op);
    case at::kChar:
      return reduce_chunks<std::int8_t>(by_rank, op);
    case at::kByte:
      return reduce_chunks<std::uint8_t>(by_rank, op);
    default:
      throw InvariantError(
          fmt::format("no sums of {}", c10::toString(by_rank.front().scalar_type())));
  }
}

}  // namespace lockstep::sim
