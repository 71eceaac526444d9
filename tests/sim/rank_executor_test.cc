// SPDX-License-Identifier: Apache-2.0
// Threads, and the turn that goes around.
#include "sim/rank_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "sim/world.h"
#include "tests/sim/simulate.h"

namespace lockstep::test {
namespace {

using sim::RankExecutor;
using ::testing::ElementsAre;

constexpr std::int64_t kController = RankExecutor::kController;

TEST(RankExecutorTest, RunsARankUntilItHandsTheTurnBack) {
  RankExecutor executor;
  std::vector<std::string> log;
  executor.prepare(2, [&](std::int64_t rank) {
    log.push_back("first " + std::to_string(rank));
    executor.hand_over(rank, rank == 0 ? 1 : 0);
    log.push_back("second " + std::to_string(rank));
    return rank == 0 ? 1 : kController;
  });
  executor.run(0);
  EXPECT_THAT(log, ElementsAre("first 0", "first 1", "second 0", "second 1"));
}

TEST(RankExecutorTest, LetsTheControllerResumeAParkedRank) {
  RankExecutor executor;
  int progress = 0;
  executor.prepare(1, [&](std::int64_t rank) {
    progress = 1;
    executor.hand_over(rank, kController);
    progress = 2;
    return kController;
  });
  executor.run(0);
  EXPECT_EQ(progress, 1);
  executor.run(0);
  EXPECT_EQ(progress, 2);
}

TEST(RankExecutorTest, KeepsItsThreadsAndAddsMoreWhereNeeded) {
  RankExecutor executor;
  std::set<std::thread::id> threads;
  for (const std::int64_t num_ranks : {2, 5, 3}) {
    executor.prepare(num_ranks, [&](std::int64_t rank) {
      threads.insert(std::this_thread::get_id());
      return rank + 1 < num_ranks ? rank + 1 : kController;
    });
    executor.run(0);
  }
  EXPECT_EQ(threads.size(), 5U);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 0U);
}

// The sanitizer does not follow threads across a fork.
#ifndef __SANITIZE_THREAD__
TEST(RankExecutorTest, ServesAForkedChildThatInheritedThreadsWhichAreNotThere) {
  simulate(3, barrier_and_wait);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto result = simulate(3, barrier_and_wait);
    ::_exit(result.ranks[2].end == sim::RankEnd::kFinished ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(simulate(3, barrier_and_wait).ranks[2].end, sim::RankEnd::kFinished);
}
#endif

}  // namespace
}  // namespace lockstep::test
