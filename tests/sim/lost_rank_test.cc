// SPDX-License-Identifier: Apache-2.0
// What the others see of a rank that dies or comes too late.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"
#include "sim/world.h"
#include "tests/sim/simulate.h"

namespace lockstep::test {
namespace {

using sim::RankContext;
using sim::RankEnd;
using sim::WorldOptions;
using sim::WorldResult;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kMs = 1'000'000;

WorldOptions with_timeout(std::int64_t world_size, std::int64_t timeout_ms) {
  WorldOptions options = world_of(world_size);
  options.timeout_ns = timeout_ms * kMs;
  return options;
}

TEST(LostRankTest, WhatADeadRankIssuedTakesPlaceAndWhatItDidNotIsLostAtOnce) {
  std::vector<double> sums(3, -1);
  std::vector<std::int64_t> ends_ns(3, -1);
  const WorldResult result = simulate(3, [&](RankContext& rank) {
    at::Tensor first = at::ones({2}), second = at::ones({2});
    const auto work = rank.communicator().all_reduce(first, ReduceOp::kSum, bucket_tag(3, 0));
    if (rank.rank() == 1) {
      rank.die();
    }
    const auto lost = rank.communicator().all_reduce(second, ReduceOp::kSum, bucket_tag(3, 1));
    work->wait();
    sums[static_cast<std::size_t>(rank.rank())] = first[0].item<double>();
    ends_ns[static_cast<std::size_t>(rank.rank())] = rank.now_ns();
    lost->wait();
  });
  EXPECT_THAT(sums, ElementsAre(3, -1, 3));
  EXPECT_THAT(ends_ns, ElementsAre(0, -1, 0));
  EXPECT_FALSE(result.deadlock);
  EXPECT_EQ(result.ranks[1].end, RankEnd::kDied);
  for (const std::size_t survivor : {0, 2}) {
    EXPECT_EQ(message_of<PeerLost>(result.ranks[survivor].error),
              "rank " + std::to_string(survivor) +
                  ": all_reduce bucket 1 at step 3 (seq 1, 2 Float, sum): lost rank 1: process "
                  "ended");
  }
}

TEST(LostRankTest, RanksThatWaitAlreadyAreWoken) {
  const WorldResult result = simulate(3, [&](RankContext& rank) {
    if (rank.rank() == 2) {
      rank.sleep_ns(5 * kMs);
      rank.die();
    }
    barrier_and_wait(rank);
  });
  EXPECT_FALSE(result.deadlock);
  EXPECT_THAT(message_of<PeerLost>(result.ranks[0].error), HasSubstr("lost rank 2"));
  EXPECT_THAT(message_of<PeerLost>(result.ranks[1].error), HasSubstr("lost rank 2"));
}

TEST(LostRankTest, WithoutItsDeathTheSameWaitIsADeadlock) {
  const WorldResult result = simulate(2, [&](RankContext& rank) {
    if (rank.rank() == 0) {
      barrier_and_wait(rank);
    }
  });
  EXPECT_TRUE(result.deadlock);
}

TEST(LostRankTest, AWaitThatLastsTooLongNamesWhoHasNotCome) {
  std::int64_t ended_at_ns = -1;
  const WorldResult result = sim::run_world(with_timeout(3, 100), [&](RankContext& rank) {
    if (rank.rank() == 1) {
      return;
    }
    try {
      barrier_and_wait(rank);
    } catch (const TimedOut&) {
      ended_at_ns = rank.now_ns();
      throw;
    }
  });
  EXPECT_FALSE(result.deadlock);
  EXPECT_EQ(ended_at_ns, 100 * kMs);
  EXPECT_THAT(message_of<TimedOut>(result.ranks[0].error),
              HasSubstr("timed out after 100 ms: not entered by rank 1"));
}

TEST(LostRankTest, ARankThatIsLateWithinTheLimitIsWaitedFor) {
  const WorldResult result = sim::run_world(with_timeout(2, 100), [&](RankContext& rank) {
    if (rank.rank() == 1) {
      rank.sleep_ns(99 * kMs);
    }
    at::Tensor tensor = at::ones({1});
    sum_and_wait(rank, tensor);
    EXPECT_EQ(tensor[0].item<double>(), 2);
  });
  EXPECT_EQ(result.ranks[0].end, RankEnd::kFinished);
  EXPECT_EQ(result.ranks[1].end, RankEnd::kFinished);
}

// Whether that is in time is the schedule's choice. Rank 0 may also give up when the collective has
// taken place and has not completed there, as over a real transport.
TEST(LostRankTest, ARankThatComesInTheMomentInWhichPatienceEndsIsInTimeOrOut) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    WorldOptions options = with_timeout(2, 100);
    options.schedule.policy =
        seed == 0 ? sim::SchedulePolicy::kRoundRobin : sim::SchedulePolicy::kRandom;
    options.schedule.seed = seed;
    const WorldResult result = sim::run_world(options, [&](RankContext& rank) {
      if (rank.rank() == 1) {
        rank.sleep_ns(100 * kMs);
      }
      sum_and_wait(rank, at::ones({1}));
    });
    EXPECT_FALSE(result.deadlock);
    const bool in_time = result.ranks[0].end == RankEnd::kFinished;
    EXPECT_TRUE(in_time ? result.ranks[1].end == RankEnd::kFinished
                        : !message_of<TimedOut>(result.ranks[0].error).empty())
        << "seed " << seed;
  }
}

TEST(LostRankTest, ARankThatComesTooLateIsOutAndItsCollectiveDoesNotTakePlace) {
  at::Tensor of_late = at::ones({1});
  std::string second_try;
  const WorldResult result = sim::run_world(with_timeout(3, 100), [&](RankContext& rank) {
    at::Tensor tensor = rank.rank() == 1 ? of_late : at::ones({1});
    if (rank.rank() == 1) {
      rank.sleep_ns(300 * kMs);
    }
    try {
      sum_and_wait(rank, tensor);
    } catch (const PeerLost&) {
      try {
        barrier_and_wait(rank);
      } catch (const PeerLost& error) {
        second_try = error.what();
      }
      throw;
    }
  });
  EXPECT_THAT(message_of<TimedOut>(result.ranks[0].error), HasSubstr("not entered by rank 1"));
  EXPECT_THAT(message_of<TimedOut>(result.ranks[2].error), HasSubstr("not entered by rank 1"));
  EXPECT_THAT(message_of<PeerLost>(result.ranks[1].error),
              HasSubstr("rank 0, 2 had given up waiting"));
  EXPECT_EQ(second_try, message_of<PeerLost>(result.ranks[1].error)) << "the same cause";
  EXPECT_EQ(of_late[0].item<double>(), 1);
}

// The rank that gave up first is not the one that the others name.
TEST(LostRankTest, RanksThatBeginToWaitLaterNameTheSameCulprit) {
  const WorldResult result = sim::run_world(with_timeout(4, 100), [&](RankContext& rank) {
    if (rank.rank() == 3) {
      rank.sleep_ns(1'000 * kMs);
    }
    rank.sleep_ns(rank.rank() * 60 * kMs);
    barrier_and_wait(rank);
  });
  // Rank 2 comes at 120 ms, when rank 0 has given up.
  for (const std::size_t survivor : {0, 1, 2}) {
    EXPECT_THAT(message_of<TimedOut>(result.ranks[survivor].error), HasSubstr("rank"))
        << "rank " << survivor;
  }
  EXPECT_THAT(message_of<TimedOut>(result.ranks[1].error), HasSubstr("not entered by rank 3"));
  EXPECT_THAT(message_of<TimedOut>(result.ranks[2].error), HasSubstr("not entered by rank 3"));
  EXPECT_THAT(message_of<PeerLost>(result.ranks[3].error), HasSubstr("given up"));
}

TEST(LostRankTest, EndsAlikeInEverySchedule) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const WorldResult result = sim::run_world(random_world_of(3, seed), [&](RankContext& rank) {
      at::Tensor tensor = at::ones({1});
      sum_and_wait(rank, tensor, bucket_tag(0, 0));
      if (rank.rank() == 0) {
        rank.die();
      }
      sum_and_wait(rank, tensor, bucket_tag(0, 1));
    });
    EXPECT_EQ(result.ranks[0].end, RankEnd::kDied) << "seed " << seed;
    EXPECT_THAT(message_of<PeerLost>(result.ranks[1].error), HasSubstr("bucket 1"));
    EXPECT_THAT(message_of<PeerLost>(result.ranks[2].error), HasSubstr("bucket 1"));
  }
}

}  // namespace
}  // namespace lockstep::test
