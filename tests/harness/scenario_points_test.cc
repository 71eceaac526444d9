// SPDX-License-Identifier: Apache-2.0
// Product, sample and pairwise choice.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "harness/scenario/points.h"

namespace lockstep::test {
namespace {

using harness::pairwise_points;
using harness::Point;
using harness::product_points;
using harness::product_size;
using harness::sampled_points;
using ::testing::ElementsAre;

/// Up to five axes of one to four values: at most 1,024 combinations. Full-size from the first
/// test on: RapidCheck's ranges start out small otherwise.
std::vector<std::size_t> axis_sizes() {
  const auto num_axes = *rc::gen::resize(100, rc::gen::inRange<std::size_t>(0, 6));
  return *rc::gen::container<std::vector<std::size_t>>(
      num_axes, rc::gen::resize(100, rc::gen::inRange<std::size_t>(1, 5)));
}

TEST(ScenarioPointsTest, TheLastAxisTurnsFastest) {
  EXPECT_THAT(product_points({2, 3}), ElementsAre(Point{0, 0}, Point{0, 1}, Point{0, 2},
                                                  Point{1, 0}, Point{1, 1}, Point{1, 2}));
  EXPECT_THAT(product_points({}), ElementsAre(Point{}));
}

TEST(ScenarioPointsTest, AProductThatDoesNotFitHasNoSize) {
  EXPECT_EQ(product_size({1000, 1000}), 1'000'000);
  EXPECT_EQ(product_size(std::vector<std::size_t>(61, 2)), std::int64_t{1} << 61);
  EXPECT_EQ(product_size(std::vector<std::size_t>(62, 2)), std::nullopt);
}

RC_GTEST_PROP(ScenarioPointsProps, ASampleIsAnOrderedSubsetOfTheProduct, ()) {
  const std::vector<std::size_t> sizes = axis_sizes();
  const std::int64_t count = *rc::gen::inRange<std::int64_t>(1, 40);
  const auto seed = *rc::gen::arbitrary<std::uint64_t>();
  const std::vector<Point> sample = sampled_points(sizes, count, seed);
  const std::vector<Point> all = product_points(sizes);
  RC_ASSERT(static_cast<std::int64_t>(sample.size()) ==
            std::min(count, static_cast<std::int64_t>(all.size())));
  RC_ASSERT(std::adjacent_find(sample.begin(), sample.end(), std::greater_equal<>()) ==
            sample.end());
  RC_ASSERT(std::includes(all.begin(), all.end(), sample.begin(), sample.end()));
  RC_ASSERT(sample == sampled_points(sizes, count, seed));
}

TEST(ScenarioPointsTest, SeedsDrawDifferentSamples) {
  const std::vector<std::size_t> sizes(10, 4);
  EXPECT_NE(sampled_points(sizes, 5, 1), sampled_points(sizes, 5, 2));
}

TEST(ScenarioPointsTest, EveryPointIsDrawnAboutEquallyOften) {
  // 1 of 4 points, 4000 seeds: 1000 each, with a standard deviation of sqrt(4000*3/16) = 27.4;
  // the allowed 150 are more than five of them.
  std::vector<int> drawn(4, 0);
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    const Point point = sampled_points({2, 2}, 1, seed).at(0);
    ++drawn[2 * point[0] + point[1]];
  }
  for (const int count : drawn) EXPECT_NEAR(count, 1000, 150);
}

using Pair = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;

std::set<Pair> pairs_in(const std::vector<Point>& points) {
  std::set<Pair> pairs;
  for (const Point& point : points) {
    for (std::size_t i = 0; i < point.size(); ++i) {
      for (std::size_t j = i + 1; j < point.size(); ++j) pairs.insert({i, point[i], j, point[j]});
    }
  }
  return pairs;
}

// Oracle: the pairs of the whole product.
RC_GTEST_PROP(ScenarioPointsProps, PairwiseContainsEveryPairOfTheProduct, ()) {
  const std::vector<std::size_t> sizes = axis_sizes();
  const auto chosen = pairwise_points(sizes);
  const std::vector<Point> all = product_points(sizes);
  RC_ASSERT(chosen.has_value());
  RC_ASSERT(pairs_in(*chosen) == pairs_in(all));
  RC_ASSERT(std::includes(all.begin(), all.end(), chosen->begin(), chosen->end()));
  RC_ASSERT(*chosen == *pairwise_points(sizes));
}

TEST(ScenarioPointsTest, PairwiseIsFarSmallerThanTheProduct) {
  // Ten axes of three values: 59,049 combinations; any two axes need 9, and greedy stays near it.
  const auto points = pairwise_points(std::vector<std::size_t>(10, 3));
  ASSERT_TRUE(points.has_value());
  EXPECT_GE(points->size(), 9U);
  EXPECT_LE(points->size(), 27U);
}

TEST(ScenarioPointsTest, PairwiseGivesUpWhereTwoAxesAloneAskForTooMuch) {
  // 160,000 pairs, each of them a case.
  EXPECT_EQ(pairwise_points({400, 400}), std::nullopt);
}

}  // namespace
}  // namespace lockstep::test
