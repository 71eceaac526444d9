// SPDX-License-Identifier: Apache-2.0
// The policies, without any thread.
#include "sim/scheduler.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "tests/sim/simulate.h"

namespace lockstep::test {
namespace {

using sim::make_scheduler;
using sim::SchedulePolicy;

using Ranks = std::vector<std::int64_t>;

TEST(RoundRobinSchedulerTest, StaysWhereTheRankMayStay) {
  const auto scheduler = make_scheduler(schedule_of(SchedulePolicy::kRoundRobin, 0));
  EXPECT_EQ(scheduler->next({{0, 1, 2}, 1, true, {}}), 1);
  EXPECT_EQ(scheduler->next({{0, 1, 2}, 1, true, {}}), 1);
}

TEST(RoundRobinSchedulerTest, GoesOnInCyclicOrderWhereItMayNot) {
  const auto scheduler = make_scheduler(schedule_of(SchedulePolicy::kRoundRobin, 0));
  EXPECT_EQ(scheduler->next({{0, 1, 2}, -1, false, {}}), 0);
  EXPECT_EQ(scheduler->next({{0, 1, 2}, 0, false, {}}), 1);
  EXPECT_EQ(scheduler->next({{0, 1, 2}, 2, false, {}}), 0);
  EXPECT_EQ(scheduler->next({{0, 3}, 1, false, {}}), 3);
}

TEST(RoundRobinSchedulerTest, ComesBackToTheRankThatGivesWayOnlyIfItIsAlone) {
  const auto scheduler = make_scheduler(schedule_of(SchedulePolicy::kRoundRobin, 0));
  EXPECT_EQ(scheduler->next({{1}, 1, false, {}}), 1);
  EXPECT_EQ(scheduler->next({{0, 1}, 1, false, {}}), 0);
}

TEST(RandomSchedulerTest, RepeatsItsChoicesForOneSeed) {
  const auto first = make_scheduler(schedule_of(SchedulePolicy::kRandom, 7));
  const auto second = make_scheduler(schedule_of(SchedulePolicy::kRandom, 7));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(first->next({{0, 1, 2, 3}, 0, true, {}}), second->next({{0, 1, 2, 3}, 0, true, {}}));
  }
}

TEST(RandomSchedulerTest, ChoosesDifferentlyForAnotherSeed) {
  const auto first = make_scheduler(schedule_of(SchedulePolicy::kRandom, 7));
  const auto second = make_scheduler(schedule_of(SchedulePolicy::kRandom, 8));
  Ranks a, b;
  for (int i = 0; i < 100; ++i) {
    a.push_back(first->next({{0, 1, 2, 3}, 0, true, {}}));
    b.push_back(second->next({{0, 1, 2, 3}, 0, true, {}}));
  }
  EXPECT_NE(a, b);
}

TEST(RandomSchedulerTest, ChoosesUniformlyAmongTheRunnableAndNobodyElse) {
  const auto scheduler = make_scheduler(schedule_of(SchedulePolicy::kRandom, 1));
  std::array<int, 6> num_chosen{};
  constexpr int kDraws = 30'000;
  for (int i = 0; i < kDraws; ++i) {
    ++num_chosen[static_cast<std::size_t>(scheduler->next({{1, 3, 5}, 3, true, {}}))];
  }
  EXPECT_EQ(num_chosen[0] + num_chosen[2] + num_chosen[4], 0);
  // Each is binomial with mean 10,000 and standard deviation sqrt(30,000 * 2 / 9) = 82.
  for (const std::size_t rank : {1U, 3U, 5U}) {
    EXPECT_NEAR(num_chosen[rank], kDraws / 3, 5 * 82);
  }
}

}  // namespace
}  // namespace lockstep::test
