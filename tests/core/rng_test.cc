// SPDX-License-Identifier: Apache-2.0
// The generator: known answers, independence of position, and the shape of its distributions.
#include "core/rng.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "core/error.h"

namespace lockstep::test {
namespace {

// The published known answers of Philox 4x32-10.
TEST(RngTest, PhiloxGivesItsPublishedAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox4x32({ones, ones, ones, ones}, {ones, ones}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RngTest, SameArgumentsGiveTheSameValues) {
  CounterRng first(7, RngStream::kInit, 2, 3);
  CounterRng second(7, RngStream::kInit, 2, 3);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(first.next(), second.next());
  }
}

TEST(RngTest, SeedStreamRankAndStepEachChangeTheSequence) {
  std::set<std::uint64_t> seen;
  for (CounterRng rng :
       {CounterRng(7, RngStream::kInit, 2, 3), CounterRng(8, RngStream::kInit, 2, 3),
        CounterRng(7, RngStream::kData, 2, 3), CounterRng(7, RngStream::kInit, 3, 3),
        CounterRng(7, RngStream::kInit, 2, 4)}) {
    for (int i = 0; i < 1000; ++i) {
      EXPECT_TRUE(seen.insert(rng.next()).second);
    }
  }
}

TEST(RngTest, RejectsRanksAndStepsOutOfRange) {
  const std::int64_t too_large = std::int64_t{1} << 32;
  EXPECT_THROW(CounterRng(0, RngStream::kInit, -1), UsageError);
  EXPECT_THROW(CounterRng(0, RngStream::kInit, too_large), UsageError);
  EXPECT_THROW(CounterRng(0, RngStream::kInit, 0, -1), UsageError);
  EXPECT_THROW(CounterRng(0, RngStream::kInit, 0, too_large), UsageError);
}

// n = 100000 draws: the mean of a uniform has standard deviation 1 / sqrt(12 n) = 0.0009; five of
// them are 0.0046. The seed is fixed, so this cannot fail by chance.
TEST(RngTest, UniformsFillTheUnitInterval) {
  CounterRng rng(1, RngStream::kOther);
  double sum = 0.0;
  double low = 1.0;
  double high = 0.0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double drawn = rng.uniform();
    ASSERT_GE(drawn, 0.0);
    ASSERT_LT(drawn, 1.0);
    sum += drawn;
    low = std::min(low, drawn);
    high = std::max(high, drawn);
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.0046);
  EXPECT_LT(low, 1e-3);
  EXPECT_GT(high, 1.0 - 1e-3);
}

// Moments of a standard normal: mean 0, variance 1, fourth moment 3; P(|x| > 2) = 0.0455. The
// bounds are five standard deviations of the estimates: sqrt(1/n), sqrt(2/n), sqrt(96/n),
// sqrt(p (1 - p) / n).
TEST(RngTest, NormalsHaveTheMomentsAndTailsOfANormal) {
  CounterRng rng(2, RngStream::kOther);
  constexpr double kDraws = 200000;
  double mean = 0.0;
  double second = 0.0;
  double fourth = 0.0;
  double beyond_two = 0.0;
  for (int i = 0; i < static_cast<int>(kDraws); ++i) {
    const double x = rng.normal();
    mean += x / kDraws;
    second += x * x / kDraws;
    fourth += x * x * x * x / kDraws;
    beyond_two += (std::abs(x) > 2.0 ? 1.0 : 0.0) / kDraws;
  }
  EXPECT_NEAR(mean, 0.0, 5 * std::sqrt(1 / kDraws));
  EXPECT_NEAR(second, 1.0, 5 * std::sqrt(2 / kDraws));
  EXPECT_NEAR(fourth, 3.0, 5 * std::sqrt(96 / kDraws));
  EXPECT_NEAR(beyond_two, 0.0455, 5 * std::sqrt(0.0455 * 0.9545 / kDraws));
}

TEST(RngTest, BelowCoversItsRangeEvenly) {
  CounterRng rng(3, RngStream::kOther);
  constexpr int kDraws = 70000;
  std::vector<int> counts(7, 0);
  for (int i = 0; i < kDraws; ++i) {
    ++counts[rng.below(7)];
  }
  // Expected 10000 each, standard deviation sqrt(70000 * 6/49) = 92.6.
  for (const int count : counts) {
    EXPECT_NEAR(count, 10000, 5 * 92.6);
  }
  EXPECT_EQ(rng.below(1), 0U);
  EXPECT_THROW(rng.below(0), UsageError);
}

// For a bound of 3 * 2^62 taking a remainder would hit the lower third twice as often.
TEST(RngTest, BelowHasNoModuloBiasForHugeBounds) {
  CounterRng rng(4, RngStream::kOther);
  const std::uint64_t third = std::uint64_t{1} << 62;
  int lower = 0;
  constexpr int kDraws = 30000;
  for (int i = 0; i < kDraws; ++i) {
    lower += rng.below(3 * third) < third ? 1 : 0;
  }
  // Expected 10000, standard deviation sqrt(30000 * 2/9) = 81.6.
  EXPECT_NEAR(lower, 10000, 5 * 81.6);
}

TEST(RngTest, BernoulliIsExactAtItsEnds) {
  CounterRng rng(5, RngStream::kOther);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(rng.bernoulli(0.0));
    EXPECT_TRUE(rng.bernoulli(1.0));
  }
}

RC_GTEST_PROP(RngProps, APermutationHoldsEveryIndexOnce, ()) {
  const auto count = *rc::gen::inRange<std::int64_t>(0, 200);
  auto order =
      CounterRng(*rc::gen::arbitrary<std::uint64_t>(), RngStream::kShuffle).permutation(count);
  std::sort(order.begin(), order.end());
  RC_ASSERT(static_cast<std::int64_t>(order.size()) == count);
  for (std::int64_t i = 0; i < count; ++i) {
    RC_ASSERT(order[static_cast<std::size_t>(i)] == i);
  }
}

// 24 orders of 4 elements, 2400 draws: 100 each, standard deviation about 9.8.
TEST(RngTest, EveryPermutationIsEquallyLikely) {
  std::map<std::vector<std::int64_t>, int> counts;
  CounterRng rng(6, RngStream::kOther);
  for (int i = 0; i < 2400; ++i) {
    ++counts[rng.permutation(4)];
  }
  EXPECT_EQ(counts.size(), 24U);
  for (const auto& [order, count] : counts) {
    EXPECT_NEAR(count, 100, 5 * 9.8);
  }
}

}  // namespace
}  // namespace lockstep::test
