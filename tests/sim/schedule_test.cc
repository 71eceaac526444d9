// SPDX-License-Identifier: Apache-2.0
// Schedules: recorded, taken again, written down; and what only some of them bring to light.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "sim/world.h"
#include "tests/sim/simulate.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;

using sim::completion_at;
using sim::parse_schedule;
using sim::Schedule;
using sim::SchedulePolicy;
using sim::ScheduleSpec;

sim::WorldResult run(std::int64_t world_size, const ScheduleSpec& schedule,
                     const std::function<void(sim::RankContext&)>& body) {
  sim::WorldOptions options = world_of(world_size);
  options.schedule = schedule;
  return sim::run_world(options, body);
}

ScheduleSpec replay(const Schedule& schedule) {
  ScheduleSpec spec;
  spec.policy = SchedulePolicy::kReplay;
  spec.schedule = schedule;
  return spec;
}

// Three collectives in flight at once, of which the middle one is waited for last.
void three_in_flight(sim::RankContext& rank) {
  std::vector<at::Tensor> tensors;
  std::vector<std::unique_ptr<Work>> works;
  for (int i = 0; i < 3; ++i) {
    rank.observer().on_event({EventKind::kGradientReady, i});
    tensors.push_back(at::full({5}, static_cast<double>(rank.rank() + i)));
    works.push_back(
        rank.communicator().all_reduce(tensors.back(), ReduceOp::kSum, bucket_tag(0, i)));
  }
  for (const int i : {0, 2, 1}) {
    works[static_cast<std::size_t>(i)]->wait();
  }
}

TEST(ScheduleTest, TheEmptyScheduleIsRoundRobin) {
  const auto round_robin = run(3, {}, three_in_flight);
  const auto replayed = run(3, replay({}), three_in_flight);
  EXPECT_EQ(round_robin.trace.hash, replayed.trace.hash);
  EXPECT_TRUE(round_robin.schedule.empty());
  EXPECT_TRUE(replayed.schedule.empty());
}

TEST(ScheduleTest, WhatARunDidCanBeDoneAgain) {
  std::set<std::uint64_t> hashes;
  for (const SchedulePolicy policy : {SchedulePolicy::kRandom, SchedulePolicy::kPct}) {
    for (std::int64_t i = 0; i < 40; ++i) {
      ScheduleSpec spec;
      spec.policy = policy;
      spec.seed = 5;
      spec.run = i;
      spec.decisions = 40;
      const auto first = run(3, spec, three_in_flight);
      const auto again = run(3, replay(first.schedule), three_in_flight);
      EXPECT_EQ(first.trace.hash, again.trace.hash) << to_string(first.schedule);
      EXPECT_EQ(first.schedule, again.schedule);
      EXPECT_EQ(parse_schedule(to_string(first.schedule)), first.schedule);
      hashes.insert(first.trace.hash);
    }
  }
  EXPECT_GT(hashes.size(), 70U);  // and the runs of one seed are different runs
}

TEST(ScheduleTest, AReplayPassesOverWhatCannotBeDone) {
  const auto result = run(2, replay({{0, completion_at(1)}, {1, 700}}), three_in_flight);
  EXPECT_TRUE(result.schedule.empty());
  EXPECT_FALSE(result.deadlock);
}

TEST(ScheduleTest, ATensorShowsTheResultOnlyWhenTheCollectiveIsCompleteAtItsRank) {
  std::set<double> seen;
  for (std::int64_t i = 0; i < 30; ++i) {
    ScheduleSpec spec;
    spec.policy = SchedulePolicy::kRandom;
    spec.run = i;
    double read_too_early = 0;
    const auto result = run(2, spec, [&](sim::RankContext& rank) {
      const at::Tensor tensor = at::ones({1});
      const auto work = rank.communicator().all_reduce(tensor, ReduceOp::kSum, {});
      if (rank.rank() == 0) {
        read_too_early = tensor.item<double>();
      }
      work->wait();
      EXPECT_EQ(tensor.item<double>(), 2.0);
    });
    EXPECT_FALSE(result.deadlock);
    seen.insert(read_too_early);
  }
  EXPECT_EQ(seen, (std::set<double>{1.0, 2.0}));
}

TEST(ScheduleTest, ACollectiveTakesWhatTensorsHoldWhenTheLastRankIssuesIt) {
  for (std::int64_t i = 0; i < 30; ++i) {
    ScheduleSpec spec;
    spec.policy = SchedulePolicy::kRandom;
    spec.run = i;
    run(2, spec, [&](sim::RankContext& rank) {
      at::Tensor tensor = at::ones({1});
      const auto work = rank.communicator().all_reduce(tensor, ReduceOp::kSum, {});
      if (rank.rank() == 1) {
        rank.communicator().barrier({})->wait();  // now all have issued both
        tensor.fill_(100.0);                      // a mistake: it is still in flight, or was
      } else {
        rank.communicator().barrier({})->wait();
      }
      work->wait();
      EXPECT_TRUE(rank.rank() == 1 || tensor.item<double>() == 2.0);
    });
  }
}

TEST(PctTest, FindsAnOrderThatNeedsOneConstraintAboutAsOftenAsItPromises) {
  // Rank 1 must act between two neighbouring steps of rank 0: depth 2.
  int num_found = 0;
  constexpr int kRuns = 400, kSteps = 20;
  for (std::int64_t i = 0; i < kRuns; ++i) {
    ScheduleSpec spec;
    spec.policy = SchedulePolicy::kPct;
    spec.depth = 2;
    spec.decisions = kSteps;
    spec.run = i;
    bool between = false, found = false;
    run(2, spec, [&](sim::RankContext& rank) {
      for (std::int64_t step = 0; step < kSteps / 2; ++step) {
        if (rank.rank() == 0) {
          between = step == 5;
        } else if (step == 0 && between) {
          found = true;
        }
        rank.observer().on_event({EventKind::kGradientReady, step});
      }
    });
    num_found += found ? 1 : 0;
  }
  // 1 / (ranks * decisions^(depth - 1)) = 1 / 40 of 400 runs are 10; a standard deviation is 3.1.
  EXPECT_GE(num_found, 10 - 2 * 3);
}

TEST(PctTest, RefusesDepthsAndLengthsThatAreNone) {
  ScheduleSpec spec;
  spec.policy = SchedulePolicy::kPct;
  spec.depth = 0;
  EXPECT_THROW(sim::make_scheduler(spec), UsageError);
  spec.depth = 1;
  spec.decisions = 0;
  EXPECT_THROW(sim::make_scheduler(spec), UsageError);
}

TEST(ScheduleTextTest, NamesThePartThatIsNone) {
  EXPECT_EQ(parse_schedule(" 3:1  15:c0 "), (Schedule{{3, 1}, {15, completion_at(0)}}));
  for (const char* text : {"3", "3:", "x:1", "3:d1", "3:c", "-1:0", "3:1x", "3:2000", "3:1 :"}) {
    try {
      parse_schedule(text);
      ADD_FAILURE() << text;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("not part of a schedule")) << text;
    }
  }
  EXPECT_THROW(parse_schedule("4:1 4:0"), UsageError);
}

}  // namespace
}  // namespace lockstep::test
