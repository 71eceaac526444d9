// SPDX-License-Identifier: Apache-2.0
// How ranks take turns, sleep, draw random numbers and end.
#include "sim/world.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cfenv>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "tests/sim/simulate.h"

namespace lockstep::test {
namespace {

using sim::RankContext;
using sim::RankEnd;
using sim::WorldResult;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Ranks = std::vector<std::int64_t>;

TEST(WorldTest, RunsEachRankOnceAndReportsThemFinished) {
  Ranks order;
  const WorldResult result = simulate(3, [&](RankContext& rank) {
    EXPECT_EQ(rank.communicator().rank(), rank.rank());
    EXPECT_EQ(rank.communicator().world_size(), 3);
    order.push_back(rank.rank());
  });
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
  EXPECT_FALSE(result.deadlock);
  EXPECT_FALSE(result.mismatch.has_value());
  for (const auto& rank : result.ranks) {
    EXPECT_EQ(rank.end, RankEnd::kFinished);
  }
}

TEST(WorldTest, RoundRobinChangesRanksAtAYieldAndAtAnIncompleteCollectiveOnly) {
  Ranks order;
  simulate(2, [&](RankContext& rank) {
    order.push_back(rank.rank());
    rank.observer().on_event({EventKind::kGradientReady, 0});
    rank.observer().on_event({EventKind::kBucketLaunched, 0});
    order.push_back(rank.rank());
    rank.yield();
    order.push_back(rank.rank());
    barrier_and_wait(rank);
    order.push_back(rank.rank());
  });
  // Rank 1 completes the barrier and goes on; rank 0 comes back when it has ended.
  EXPECT_THAT(order, ElementsAre(0, 0, 1, 1, 0, 1, 1, 0));
}

Ranks order_at_yield_points(std::uint64_t seed) {
  Ranks order;
  sim::run_world(random_world_of(3, seed), [&](RankContext& rank) {
    for (std::int64_t i = 0; i < 10; ++i) {
      order.push_back(rank.rank());
      rank.observer().on_event({EventKind::kGradientReady, i});
    }
  });
  return order;
}

TEST(WorldTest, RandomInterleavesAtYieldPointsBySeed) {
  const Ranks order = order_at_yield_points(1);
  EXPECT_EQ(order.size(), 30U);
  EXPECT_EQ(order, order_at_yield_points(1));
  EXPECT_NE(order, order_at_yield_points(2));
  Ranks sorted = order;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_NE(order, sorted);
}

TEST(WorldTest, WakesSleepersInOrderOfTheirTimes) {
  std::vector<std::pair<std::int64_t, int>> order;
  sim::WorldOptions options = world_of(3);
  options.keep_trace = true;
  const WorldResult result = sim::run_world(options, [&](RankContext& rank) {
    // Rank r sleeps until 30 - 10 r, then until 1000 + r.
    rank.sleep_ns(30 - 10 * rank.rank());
    order.emplace_back(rank.rank(), 1);
    rank.sleep_ns(1000 + rank.rank() - (30 - 10 * rank.rank()));
    order.emplace_back(rank.rank(), 2);
    rank.observer().on_event({EventKind::kScript, 0});
  });
  using P = std::pair<std::int64_t, int>;
  EXPECT_THAT(order, ElementsAre(P{2, 1}, P{1, 1}, P{0, 1}, P{0, 2}, P{1, 2}, P{2, 2}));
  for (const auto& entry : result.trace.entries) {
    if (entry.event.kind == EventKind::kScript) {
      EXPECT_EQ(entry.time_ns, 1000 + entry.rank);
    }
  }
}

TEST(WorldTest, LetsTimePassOnlyWhenNobodyCanRun) {
  Ranks order;
  simulate(2, [&](RankContext& rank) {
    if (rank.rank() == 0) {
      rank.sleep_ns(1);
      order.push_back(0);
    } else {
      for (int i = 0; i < 5; ++i) {
        rank.yield();
        order.push_back(1);
      }
    }
  });
  EXPECT_THAT(order, ElementsAre(1, 1, 1, 1, 1, 0));
}

TEST(WorldTest, TreatsASleepOfNothingAsAYieldAndRefusesANegativeOne) {
  Ranks order;
  const WorldResult result = simulate(2, [&](RankContext& rank) {
    order.push_back(rank.rank());
    rank.sleep_ns(0);
    order.push_back(rank.rank());
    rank.sleep_ns(-1);
  });
  EXPECT_THAT(order, ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(message_of<UsageError>(result.ranks[0].error), HasSubstr("-1 ns"));
}

TEST(WorldTest, KeepsWhatABodyThrowsAndLetsTheOthersEnd) {
  const WorldResult result = simulate(3, [](RankContext& rank) {
    if (rank.rank() == 1) {
      throw std::out_of_range("no such batch");
    }
  });
  EXPECT_EQ(result.ranks[1].end, RankEnd::kFailed);
  EXPECT_EQ(message_of<std::out_of_range>(result.ranks[1].error), "no such batch");
  EXPECT_EQ(result.ranks[0].end, RankEnd::kFinished);
  EXPECT_EQ(result.ranks[2].end, RankEnd::kFinished);
  EXPECT_FALSE(result.deadlock);
}

TEST(WorldTest, RethrowsAnInvariantErrorOfABody) {
  EXPECT_THROW(simulate(2, [](RankContext&) { throw InvariantError("broken"); }), InvariantError);
}

TEST(WorldTest, GivesEachRankItsOwnGeneratorFromTheCallersState) {
  torch::manual_seed(5);
  const at::Tensor first = at::randn({3});
  const at::Tensor second = at::randn({3});
  const at::Tensor third = at::randn({2});

  torch::manual_seed(5);
  std::vector<std::vector<at::Tensor>> drawn(3);
  simulate(3, [&](RankContext& rank) {
    auto& mine = drawn[static_cast<std::size_t>(rank.rank())];
    mine.push_back(at::randn({3}));
    rank.yield();
    if (rank.rank() == 2) {
      torch::manual_seed(99);  // of no consequence to the others
    }
    rank.yield();
    mine.push_back(at::randn({3}));
  });
  for (const std::size_t rank : {0U, 1U}) {
    EXPECT_TRUE(at::equal(drawn[rank][0], first));
    EXPECT_TRUE(at::equal(drawn[rank][1], second));
  }
  EXPECT_TRUE(at::equal(drawn[2][0], first));
  EXPECT_FALSE(at::equal(drawn[2][1], second));
  // The caller goes on from where it was: ranks drew nothing from its generator.
  EXPECT_TRUE(at::equal(at::randn({3}), first));
  EXPECT_TRUE(at::equal(at::randn({3}), second));
  EXPECT_TRUE(at::equal(at::randn({2}), third));
}

TEST(WorldTest, KeepsTheSecondHalfOfAPairOfNormalSamplesPerRank) {
  torch::manual_seed(5);
  const double first = at::randn({1}, at::kDouble).item<double>();
  const double second = at::randn({1}, at::kDouble).item<double>();
  torch::manual_seed(5);
  std::vector<std::vector<double>> drawn(2);
  simulate(2, [&](RankContext& rank) {
    for (int i = 0; i < 2; ++i) {
      drawn[static_cast<std::size_t>(rank.rank())].push_back(
          at::randn({1}, at::kDouble).item<double>());
      rank.yield();
    }
  });
  EXPECT_THAT(drawn[0], ElementsAre(first, second));
  EXPECT_THAT(drawn[1], ElementsAre(first, second));
}

TEST(WorldTest, StartsEveryRankWithTheCallersGradModeAndOneLibTorchThread) {
  const at::NoGradGuard no_grad;
  std::vector<std::pair<bool, int>> seen;
  simulate(2, [&](RankContext&) {
    seen.emplace_back(at::GradMode::is_enabled(), at::get_num_threads());
    at::GradMode::set_enabled(true);
  });
  using P = std::pair<bool, int>;
  // Twice: the same threads serve again.
  simulate(2, [&](RankContext&) {
    seen.emplace_back(at::GradMode::is_enabled(), at::get_num_threads());
  });
  EXPECT_THAT(seen, ElementsAre(P{false, 1}, P{false, 1}, P{false, 1}, P{false, 1}));
}

TEST(WorldTest, StartsEveryRankWithClearFloatingPointFlags) {
  const auto divide = [](RankContext& rank) {
    EXPECT_EQ(std::fetestexcept(FE_ALL_EXCEPT), 0) << "rank " << rank.rank();
    std::feraiseexcept(FE_INEXACT | FE_DIVBYZERO);
  };
  simulate(2, divide);
  simulate(2, divide);
}

TEST(WorldTest, GivesUpAnEndlessRunAndUnwindsItsRanks) {
  sim::WorldOptions options = world_of(3);
  options.switches_max = 1000;
  int num_unwound = 0;
  struct Unwound {
    int& count;
    ~Unwound() { ++count; }
  };
  EXPECT_THROW(sim::run_world(options,
                              [&](RankContext& rank) {
                                const Unwound unwound{num_unwound};
                                if (rank.rank() == 2) {
                                  barrier_and_wait(rank);
                                }
                                while (true) {
                                  rank.yield();
                                }
                              }),
               InvariantError);
  EXPECT_EQ(num_unwound, 3);
  EXPECT_EQ(simulate(3, barrier_and_wait).ranks[0].end, RankEnd::kFinished);
}

TEST(WorldTest, CountsAYieldOfALonelyRankAsADecision) {
  sim::WorldOptions options = world_of(1);
  options.switches_max = 100;
  EXPECT_THROW(sim::run_world(options,
                              [](RankContext& rank) {
                                while (true) {
                                  rank.yield();
                                }
                              }),
               InvariantError);
}

TEST(WorldTest, RefusesImpossibleWorlds) {
  EXPECT_THROW(simulate(0, barrier_and_wait), UsageError);
  EXPECT_THROW(simulate(-1, barrier_and_wait), UsageError);
  EXPECT_THROW(simulate(1'000'000'000, barrier_and_wait), UsageError);
  EXPECT_THROW(simulate(1, nullptr), UsageError);
}

TEST(WorldTest, RefusesAWorldWithinAWorld) {
  const WorldResult result = simulate(2, [](RankContext&) { simulate(1, [](RankContext&) {}); });
  EXPECT_THAT(message_of<UsageError>(result.ranks[1].error), HasSubstr("already running"));
}

TEST(WorldTest, RunsOnWhicheverThreadAsks) {
  Ranks sizes;
  for (const std::int64_t world_size : {4, 2, 8}) {
    std::thread([&] {
      sizes.push_back(
          static_cast<std::int64_t>(simulate(world_size, barrier_and_wait).ranks.size()));
    }).join();
  }
  EXPECT_THAT(sizes, ElementsAre(4, 2, 8));
}

}  // namespace
}  // namespace lockstep::test
