// SPDX-License-Identifier: Apache-2.0
// Random factors: their distribution, their order, and where they come from.
#include "sim/timing/pace.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/rng.h"
#include "tests/timing/small_setup.h"

namespace lockstep::test {
namespace {

using sim::timing::Draw;
using sim::timing::Pace;
using sim::timing::PaceModel;
using sim::timing::standard_score;

constexpr const char* kDistributions[] = {"uniform", "normal", "exponential"};

// Over evenly spread words the sum is an integral with an error below 1e-4.
TEST(PaceTest, ScoresHaveMeanZeroAndDeviationOne) {
  for (const char* distribution : kDistributions) {
    constexpr int kCount = 1 << 18;
    double sum = 0.0;
    double squares = 0.0;
    for (int i = 0; i < kCount; ++i) {
      const double score =
          standard_score(distribution, static_cast<std::uint32_t>(i) * 16384U + 8192U);
      sum += score;
      squares += score * score;
    }
    EXPECT_NEAR(sum / kCount, 0.0, 1e-4) << distribution;
    EXPECT_NEAR(squares / kCount, 1.0, 1e-3) << distribution;
  }
}

// Known quantiles: of the normal distribution 1.959964 at 0.975; of the exponential one log 2 - 1
// at a half.
TEST(PaceTest, ScoresAreQuantiles) {
  const auto word = [](double p) { return static_cast<std::uint32_t>(p * 4294967296.0); };
  EXPECT_NEAR(standard_score("normal", word(0.975)), 1.959963985, 1e-6);
  EXPECT_NEAR(standard_score("normal", word(0.5)), 0.0, 1e-6);
  EXPECT_NEAR(standard_score("normal", word(0.001)), -3.090232306, 1e-6);
  EXPECT_NEAR(standard_score("exponential", word(0.5)), std::log(2.0) - 1, 1e-6);
  EXPECT_NEAR(standard_score("uniform", word(0.25)), -std::sqrt(3.0) / 2, 1e-6);
}

// Folding takes the rank with the largest word for the slowest. Neighbours everywhere, and all
// around the places where the normal quantile changes its formula.
TEST(PaceTest, ScoresStrictlyGrow) {
  for (const char* distribution : kDistributions) {
    const auto check = [&](std::uint32_t first, std::uint32_t count) {
      double last = standard_score(distribution, first);
      for (std::uint32_t i = 1; i < count; ++i) {
        const double score = standard_score(distribution, first + i);
        ASSERT_GT(score, last) << distribution << " at " << first + i;
        last = score;
      }
    };
    for (std::uint32_t start = 0; start < 4'290'000'000U; start += 10'000'019U) check(start, 20);
    check(104'152'956U - 50'000, 100'000);                   // 0.02425 * 2^32
    check(4'294'967'295U - 104'152'956U - 50'000, 100'000);  // 1 - 0.02425
    check(4'294'967'295U - 1'000, 1'001);
  }
}

TEST(PaceTest, DrawsAreThoseOfTheCounterBasedGenerator) {
  TimingSetup setup = flat_setup(4);
  setup.seed = 0x123456789ABCDEF;
  setup.jitter.compute = 0.1;
  setup.jitter.stall_probability = 0.5;
  const PaceModel model(setup);
  for (const std::int64_t rank : {0, 3, 999'999}) {
    for (const std::int64_t step : {0, 7}) {
      CounterRng rng(static_cast<std::uint64_t>(setup.seed), RngStream::kTiming, rank, step);
      const std::uint64_t word = rng.next();
      const Draw draw = model.draw(rank, step);
      EXPECT_EQ(draw.score, static_cast<std::uint32_t>(word));
      EXPECT_EQ(draw.stalled, (word >> 32) < (1ULL << 31));
    }
  }
}

TEST(PaceTest, StragglersAreSlowInTheirStepsOnly) {
  TimingSetup setup = flat_setup(4);
  setup.stragglers = {{{1, 2}, {}, 2.0, 0.0}, {{2}, {5}, 1.5, 3.0}};
  const PaceModel model(setup);
  EXPECT_EQ(model.pace_of(0, 5).factor, 1.0);
  EXPECT_EQ(model.pace_of(1, 5).factor, 2.0);
  EXPECT_EQ(model.pace_of(2, 4).factor, 2.0);
  const Pace slow = model.pace_of(2, 5);
  EXPECT_EQ(slow.factor, 3.0);
  EXPECT_EQ(slow.delay_ps, 3'000'000'000);
  EXPECT_EQ(slow.at(100), 3'000'000'300);
}

TEST(PaceTest, FactorsAreNeverBelowATenth) {
  TimingSetup setup = flat_setup(4);
  setup.jitter.compute = 1.0;
  EXPECT_EQ(PaceModel(setup).pace({0, false}, 0, 0).factor, 0.1);
}

}  // namespace
}  // namespace lockstep::test
