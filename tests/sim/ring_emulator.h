// SPDX-License-Identifier: Apache-2.0
// Gloo's ring once more, element by element from the written rule, to judge sim/ring_order.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::test {

/// The sum of element `element` over `values[rank][element]`, in the ring's order.
template <typename T>
T ring_sum(const std::vector<std::vector<T>>& values, std::int64_t element) {
  const auto w = static_cast<std::int64_t>(values.size());
  const auto n = static_cast<std::int64_t>(values[0].size());
  const auto es = static_cast<std::int64_t>(sizeof(T));
  // Smallest multiple of w that is at least 2 * w and at least the number of mebibytes begun.
  std::int64_t segments = 2 * w;
  while (segments * (1 << 20) < n * es) {
    segments += w;
  }
  // Smallest whole number of elements with which `segments` segments hold everything.
  std::int64_t segment_numel = 1;
  while (segment_numel * es * segments < n * es) {
    ++segment_numel;
  }
  const std::int64_t chunk = element / (segments / w * segment_numel);
  const auto at = [&](std::int64_t rank) {
    return values[static_cast<std::size_t>((rank % w + w) % w)][static_cast<std::size_t>(element)];
  };
  T sum = at(chunk - 1);
  for (std::int64_t back = 2; back <= w; ++back) {
    sum = at(chunk - back) + sum;
  }
  return sum;
}

}  // namespace lockstep::test
