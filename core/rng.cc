// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10 and what is drawn from it.
#include "core/rng.h"

#include <numeric>
#include <utility>

#include "core/check.h"

namespace lockstep {
namespace {

constexpr std::int64_t kWordRange = std::int64_t{1} << 32;

std::uint32_t low_word(std::uint64_t value) {
  return static_cast<std::uint32_t>(value & 0xFFFFFFFFULL);
}
std::uint32_t high_word(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

// The length of a strictly falling run of uniforms that starts below `start` is even with
// probability exp(-start): sum over m of (-start)^m / m!.
bool exp_minus_half(CounterRng& rng) {
  double last = 0.5;
  bool even = true;
  for (double drawn = rng.uniform(); drawn < last; drawn = rng.uniform()) {
    last = drawn;
    even = !even;
  }
  return even;
}

// True with probability exp(-x (2 k + x) / (2 k + 2)): as above, each step of the falling run also
// survives only with probability (2 k + x) / (2 k + 2).
bool exp_minus_tail(CounterRng& rng, int k, double x) {
  const double survive = (2.0 * k + x) / (2.0 * k + 2.0);
  double last = x;
  bool even = true;
  for (;;) {
    const double drawn = rng.uniform();
    if (!(drawn < last) || !(rng.uniform() < survive)) {
      return even;
    }
    last = drawn;
    even = !even;
  }
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53;
  constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9;
  constexpr std::uint32_t kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {high_word(product1) ^ counter[1] ^ key[0], low_word(product1),
               high_word(product0) ^ counter[3] ^ key[1], low_word(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

CounterRng::CounterRng(std::uint64_t seed, RngStream stream, std::int64_t rank, std::int64_t step)
    : key_{low_word(seed), high_word(seed)} {
  LOCKSTEP_USAGE(rank >= 0 && rank < kWordRange, "rank {} of a random stream is not in 0 .. 2^32-1",
                 rank);
  LOCKSTEP_USAGE(step >= 0 && step < kWordRange, "step {} of a random stream is not in 0 .. 2^32-1",
                 step);
  // Words: block number (low), stream and block number (high 24 bits), rank, step. Different
  // sequences differ in a word that counting never reaches.
  counter_ = {0, static_cast<std::uint32_t>(stream) << 24, static_cast<std::uint32_t>(rank),
              static_cast<std::uint32_t>(step)};
}

std::uint64_t CounterRng::next() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const auto block = philox4x32(counter_, key_);
  if (++counter_[0] == 0) {
    LOCKSTEP_USAGE((++counter_[1] & 0x00FFFFFFU) != 0, "a random stream of 2^57 values is used up");
  }
  spare_ = (static_cast<std::uint64_t>(block[3]) << 32) | block[2];
  has_spare_ = true;
  return (static_cast<std::uint64_t>(block[1]) << 32) | block[0];
}

double CounterRng::uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

double CounterRng::uniform(double low, double high) { return low + (high - low) * uniform(); }

double CounterRng::normal() {
  for (;;) {
    // k with probability proportional to exp(-k / 2), kept with probability exp(-k (k - 1) / 2).
    int k = 0;
    while (exp_minus_half(*this)) {
      ++k;
    }
    bool kept = true;
    for (int i = 0; i < k * (k - 1) && kept; ++i) {
      kept = exp_minus_half(*this);
    }
    if (!kept) {
      continue;
    }
    // x in [0, 1), kept with probability exp(-x (2 k + x) / 2): k + 1 factors of exp_minus_tail.
    const double x = uniform();
    for (int i = 0; i <= k && kept; ++i) {
      kept = exp_minus_tail(*this, k, x);
    }
    if (kept) {
      return (next() >> 63) == 0 ? k + x : -(k + x);
    }
  }
}

std::uint64_t CounterRng::below(std::uint64_t bound) {
  LOCKSTEP_USAGE(bound > 0, "a random number below 0 does not exist");
  // The first 2^64 mod bound values are rejected; the rest is a multiple of bound.
  const std::uint64_t rejected = (0 - bound) % bound;
  std::uint64_t drawn = next();
  while (drawn < rejected) {
    drawn = next();
  }
  return drawn % bound;
}

bool CounterRng::bernoulli(double p) { return uniform() < p; }

std::vector<std::int64_t> CounterRng::permutation(std::int64_t count) {
  LOCKSTEP_USAGE(count >= 0, "a permutation of {} elements does not exist", count);
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::size_t left = order.size(); left > 1; --left) {
    std::swap(order[left - 1], order[below(left)]);
  }
  return order;
}

}  // namespace lockstep
