// SPDX-License-Identifier: Apache-2.0
// Which scripts a search goes on from.
#include "harness/fuzz/campaign/steering.h"

#include <gtest/gtest.h>

namespace lockstep::harness::fuzz {
namespace {

CaseResult waited(std::int64_t ns) {
  CaseResult result;
  result.longest_wait_ns = ns;
  return result;
}

CaseResult distant(double observed, double bound) {
  CaseResult result;
  result.outcome.worst = Distance{observed, bound, 0, "w"};
  return result;
}

Case seeded(std::uint64_t seed) {
  Case value;
  value.seed = seed;
  return value;
}

TEST(Steering, KeepsTheBestAndOfEqualOnesTheEarlier) {
  Steering steering(Toward::kWait);
  for (std::int64_t i = 0; i < 40; ++i) {
    steering.add("case " + std::to_string(i), seeded(1), waited(i % 20));
  }
  ASSERT_EQ(steering.best().size(), 16U);
  EXPECT_EQ(steering.best()[0].name, "case 19");
  EXPECT_EQ(steering.best()[1].name, "case 39");
  EXPECT_EQ(steering.best()[2].name, "case 18");
}

TEST(Steering, MeasuresTheDistanceByItsBound) {
  Steering steering(Toward::kUlp);
  steering.add("far", seeded(1), distant(4.0, 8.0));
  steering.add("near", seeded(1), distant(5.0, 100.0));
  steering.add("bit for bit", seeded(1), distant(0.0, 0.0));
  ASSERT_EQ(steering.best().size(), 2U);
  EXPECT_EQ(steering.best()[0].name, "far");
  EXPECT_EQ(steering.best()[0].score, 0.5);
}

TEST(Steering, ParentsAreThoseOfTheGenerationsBefore) {
  Steering steering(Toward::kWait);
  steering.add("case 0", seeded(1), waited(5));
  for (std::uint64_t i = 0; i < 64; ++i) EXPECT_EQ(steering.parent(7, i), nullptr);
  steering.begin_generation();
  steering.add("case 1", seeded(2), waited(50));
  int num_descend = 0;
  for (std::uint64_t i = 0; i < 64; ++i) {
    const Case* parent = steering.parent(7, i);
    num_descend += parent != nullptr ? 1 : 0;
    if (parent != nullptr) {
      EXPECT_EQ(parent->seed, 1U);
    }
  }
  // Half of them, by a coin of the seed's.
  EXPECT_GT(num_descend, 16);
  EXPECT_LT(num_descend, 48);
}

}  // namespace
}  // namespace lockstep::harness::fuzz
