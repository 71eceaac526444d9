// SPDX-License-Identifier: Apache-2.0
// A counter-based random generator with the same output on every platform.
#pragma once

#include <cstdint>

namespace lockstep::sim {

/// SplitMix64: the k-th draw is a fixed mixing function of seed + k * odd constant.
class SplitMix64 {
 public:
  explicit SplitMix64(std::uint64_t seed) : counter_(seed) {}

  std::uint64_t next() {
    counter_ += 0x9e3779b97f4a7c15ULL;
    std::uint64_t mixed = counter_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebULL;
    return mixed ^ (mixed >> 31);
  }

  /// Uniform in [0, bound), 0 < bound < 2^32. The bias of the multiply-and-shift is below 2^-32.
  std::uint64_t below(std::uint64_t bound) { return ((next() >> 32) * bound) >> 32; }

 private:
  std::uint64_t counter_;
};

}  // namespace lockstep::sim
