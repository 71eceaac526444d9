// SPDX-License-Identifier: Apache-2.0
// Edit distance and the name that was meant.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <optional>
#include <string>

#include "harness/scenario/nearest_name.h"

namespace lockstep::test {
namespace {

using harness::edit_distance;
using harness::nearest_name;

TEST(NearestNameTest, CountsInsertionsDeletionsReplacementsAndSwaps) {
  EXPECT_EQ(edit_distance("ranks", "ranks"), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("rank", "ranks"), 1);
  EXPECT_EQ(edit_distance("rangs", "ranks"), 1);
  EXPECT_EQ(edit_distance("rnaks", "ranks"), 1);
  // Swap, then the swapped pair is not touched again: 3, not 2.
  EXPECT_EQ(edit_distance("ca", "abc"), 3);
}

RC_GTEST_PROP(NearestNameProps, DistanceIsSymmetricAndObeysTheTriangleOfLengths, ()) {
  const auto name = rc::gen::container<std::string>(rc::gen::inRange('a', 'e'));
  const std::string a = *name;
  const std::string b = *name;
  const std::int64_t distance = edit_distance(a, b);
  const auto difference = static_cast<std::int64_t>(a.size()) - static_cast<std::int64_t>(b.size());
  RC_ASSERT(distance == edit_distance(b, a));
  RC_ASSERT(distance >= std::abs(difference));
  RC_ASSERT(distance <= static_cast<std::int64_t>(std::max(a.size(), b.size())));
  RC_ASSERT((distance == 0) == (a == b));
}

TEST(NearestNameTest, FindsTheClosestAndTheFirstOfEquals) {
  EXPECT_EQ(nearest_name("stepp", {"skip", "step", "steps"}), "step");
  EXPECT_EQ(nearest_name("bat", {"cat", "hat"}), "cat");
}

TEST(NearestNameTest, SuggestsNothingThatIsFarOff) {
  EXPECT_EQ(nearest_name("learning_rate", {"lr", "eps"}), std::nullopt);
  EXPECT_EQ(nearest_name("x", {}), std::nullopt);
}

}  // namespace
}  // namespace lockstep::test
