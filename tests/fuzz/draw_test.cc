// SPDX-License-Identifier: Apache-2.0
// Scripts are drawn from seed and number alone, and hold together.
#include "harness/fuzz/draw.h"

#include <gtest/gtest.h>

#include "harness/scenario.h"

namespace lockstep::harness::fuzz {
namespace {

TEST(Draw, IsTheSameForOneSeedAndNumber) {
  for (std::uint64_t index = 0; index < 50; ++index) {
    EXPECT_EQ(print_case(draw_script({}, 7, index)), print_case(draw_script({}, 7, index)));
  }
  EXPECT_NE(print_case(draw_script({}, 7, 0)), print_case(draw_script({}, 8, 0)));
}

TEST(Draw, MakesCasesWithoutContradictions) {
  for (std::uint64_t index = 0; index < 200; ++index) {
    EXPECT_TRUE(check_case(draw_script({}, 1, index)).empty());
  }
}

}  // namespace
}  // namespace lockstep::harness::fuzz
