// SPDX-License-Identifier: Apache-2.0
// Random numbers that depend on where they are used, not on when: one portable generator.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace lockstep {

/// What random numbers are for. Streams never overlap, so a new use of one cannot shift another.
enum class RngStream : std::uint8_t {
  kInit = 0,       ///< initial parameters; shared by all ranks
  kData = 1,       ///< contents of data sets; shared by all ranks
  kShuffle = 2,    ///< order of samples; shared by all ranks
  kStructure = 3,  ///< structural choices of a model; shared by all ranks
  kDropout = 4,    ///< dropout masks; one per rank
  kAugment = 5,    ///< augmentation; one per rank
  kSchedule = 6,   ///< choices of a scheduler
  kFault = 7,      ///< choices of injected faults
  kVary = 8,       ///< sampling of a scenario's axes
  kFuzz = 9,       ///< invented scenarios
  kOther = 10,     ///< anything else
  kTiming = 11,    ///< jitter of predicted times
};

/// A counter-based generator (Philox 4x32-10): the n-th value is a function of
/// (seed, stream, rank, step, n) alone.
///
/// Different (stream, rank, step) of one seed give sequences that never share a block. Uses no
/// standard distribution and no math library, so that every compiler and machine draws the same
/// bits. Copying copies the position. Not for cryptography.
/// Threads: one object, one thread.
class CounterRng {
 public:
  using result_type = std::uint64_t;

  /// Errors: UsageError unless 0 <= rank < 2^32 and 0 <= step < 2^32.
  explicit CounterRng(std::uint64_t seed, RngStream stream, std::int64_t rank = 0,
                      std::int64_t step = 0);

  /// 64 random bits.
  std::uint64_t next();
  /// Uniform on [0, 1): a multiple of 2^-53.
  double uniform();
  /// Uniform on [low, high).
  double uniform(double low, double high);
  /// Standard normal (Karney's exact method: comparisons of uniforms, no logarithm).
  double normal();
  /// Uniform on 0 .. bound-1, without modulo bias. Errors: UsageError if bound == 0.
  std::uint64_t below(std::uint64_t bound);
  /// True with probability `p`; always false for p <= 0 and always true for p >= 1.
  bool bernoulli(double p);
  /// A uniformly random order of 0 .. count-1 (Fisher-Yates).
  std::vector<std::int64_t> permutation(std::int64_t count);

  /// Makes this a UniformRandomBitGenerator.
  std::uint64_t operator()() { return next(); }
  static constexpr std::uint64_t min() { return 0; }
  static constexpr std::uint64_t max() { return ~std::uint64_t{0}; }

 private:
  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 4> counter_;
  std::uint64_t spare_ = 0;
  bool has_spare_ = false;
};

/// One block of Philox 4x32-10: a bijection of `counter` chosen by `key`.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

}  // namespace lockstep
