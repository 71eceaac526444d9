// SPDX-License-Identifier: Apache-2.0
// Choices drawn from RapidCheck's generator of random numbers.
#pragma once

#include <rapidcheck/Random.h>

#include <cstdint>
#include <initializer_list>
#include <vector>

namespace lockstep::harness::fuzz {

/// The same choices in the same order from the same generator, on every machine.
class Dice {
 public:
  explicit Dice(const rc::Random& random) : random_(random) {}

  /// From 0 to `count` - 1. Precondition: `count` > 0.
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(random_.next() % static_cast<std::uint64_t>(count));
  }
  /// Both ends included.
  std::int64_t between(std::int64_t first, std::int64_t last) {
    return first + below(last - first + 1);
  }
  /// A generator for something else, drawn from this one.
  rc::Random another() {
    const std::uint64_t a = random_.next(), b = random_.next();
    return rc::Random(rc::Random::Key{a, b, 0, 0});
  }
  bool chance(std::int64_t percent) { return below(100) < percent; }

  template <typename T>
  const T& one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<std::int64_t>(values.size())))];
  }
  template <typename T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + below(static_cast<std::int64_t>(values.size())));
  }

 private:
  rc::Random random_;
};

}  // namespace lockstep::harness::fuzz
