// SPDX-License-Identifier: Apache-2.0
// core's rendezvous on a simulated network: what is refused, when, and who is told.
#include "sim/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "core/error.h"
#include "tests/sim/simulate.h"

namespace lockstep::test {
namespace {

using sim::HostOptions;
using sim::LaunchOptions;
using sim::LaunchResult;
using sim::LaunchRun;
using sim::run_launch;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::Lt;

constexpr std::int64_t kMs = 1'000'000;

HostOptions host(const std::string& name, const std::string& address) {
  return {name, {{"lo", "127.0.0.1"}, {"eth0", address}}, {{name, "127.0.0.1"}}, {}};
}

/// So many ranks of one run, on one host.
LaunchOptions of_ranks(std::int64_t world_size) {
  LaunchOptions options;
  options.hosts = {host("a", "10.0.0.1")};
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    options.processes.push_back({0, rank, world_size, "A", "store", "lo"});
  }
  return options;
}

/// The same on two hosts, in turn.
LaunchOptions on_two_hosts(std::int64_t world_size, const std::string& interface) {
  LaunchOptions options = of_ranks(world_size);
  options.hosts.push_back(host("b", "10.0.0.2"));
  for (std::size_t i = 0; i < options.processes.size(); ++i) {
    options.processes[i].host = i % 2;
    options.processes[i].interface = interface;
  }
  return options;
}

void expect_all_met(const LaunchRun& run) {
  for (const LaunchResult& process : run.processes) {
    EXPECT_EQ(process.error_kind, "") << process.error_message;
  }
}

TEST(SimLaunchTest, RanksMeetAtOnceAndListenWhereTheyWereTold) {
  for (const std::int64_t world_size : {1, 2, 8}) {
    const LaunchRun run = run_launch(of_ranks(world_size));
    expect_all_met(run);
    EXPECT_EQ(describe(run.processes.back().listen), "lo (127.0.0.1)");
    EXPECT_LT(run.processes.back().ended_at_ns, 10 * kMs);
  }
}

TEST(SimLaunchTest, EveryScheduleEndsAlike) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    expect_all_met(run_launch(of_ranks(8), random_world_of(8, seed)));
  }
}

TEST(SimLaunchTest, LoopbackIsRefusedOnAllRanksWhereThereAreTwoHosts) {
  const LaunchRun run = run_launch(on_two_hosts(4, ""));
  for (const LaunchResult& process : run.processes) {
    EXPECT_EQ(process.error_kind, "loopback_address");
    EXPECT_THAT(process.error_message, HasSubstr("rank 0 listens on 127.0.0.1"));
    EXPECT_LT(process.ended_at_ns, 100 * kMs);
  }
  EXPECT_THAT(run.processes[0].error_message, HasSubstr("eth0 (10.0.0.1)"));
  expect_all_met(run_launch(on_two_hosts(4, "eth0")));
  expect_all_met(run_launch(on_two_hosts(4, "^lo")));
}

TEST(SimLaunchTest, AnInterfaceThatOneRankLacksIsToldToAll) {
  LaunchOptions options = on_two_hosts(3, "eth0");
  options.hosts[1].interfaces.pop_back();
  for (const LaunchResult& process : run_launch(options).processes) {
    EXPECT_EQ(process.error_kind, "no_such_interface");
    EXPECT_THAT(process.error_message,
                AllOf(HasSubstr("rank 1: host b"), HasSubstr("'eth0'; there are: lo (127.0.0.1)")));
    EXPECT_LT(process.ended_at_ns, 100 * kMs);
  }
}

TEST(SimLaunchTest, APortThatIsHeldIsToldToAll) {
  LaunchOptions options = of_ranks(2);
  options.port = 29500;
  expect_all_met(run_launch(options));
  options.hosts[0].held_ports = {29500};
  for (const LaunchResult& process : run_launch(options).processes) {
    EXPECT_EQ(process.error_kind, "port_taken");
    EXPECT_THAT(process.error_message, HasSubstr("port 29500 of host a: Address already in use"));
  }
}

TEST(SimLaunchTest, TheStoreOfAnEarlierRunIsRefusedBeforeAnybodyWaits) {
  LaunchOptions options = of_ranks(2);
  options.left_behind_by = "B";
  for (const LaunchResult& process : run_launch(options).processes) {
    EXPECT_EQ(process.error_kind, "foreign_run");
    EXPECT_THAT(process.error_message, HasSubstr("belongs to run B, this is run A"));
    EXPECT_EQ(process.ended_at_ns, 0);
  }
}

TEST(SimLaunchTest, TwoRunsInOneStoreNeverMixInAnySchedule) {
  LaunchOptions options = of_ranks(2);
  for (const std::int64_t rank : {0, 1}) {
    options.processes.push_back({0, rank, 2, "B", "store", "lo"});
  }
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto& processes = run_launch(options, random_world_of(4, seed)).processes;
    const bool a_met = processes[0].error_kind.empty();
    EXPECT_EQ(processes[1].error_kind.empty(), a_met) << "seed " << seed;
    EXPECT_EQ(processes[2].error_kind, a_met ? "foreign_run" : "") << "seed " << seed;
    EXPECT_EQ(processes[3].error_kind, a_met ? "foreign_run" : "") << "seed " << seed;
  }
  options.processes[2].store = options.processes[3].store = "another store";
  expect_all_met(run_launch(options));
}

TEST(SimLaunchTest, AStoreThatWasRemovedIsAnErrorForTheNextGroup) {
  LaunchOptions options = of_ranks(3);
  options.store_removed = true;
  for (const LaunchResult& process : run_launch(options).processes) {
    EXPECT_EQ(process.error_kind, "store_unusable");
    EXPECT_THAT(process.error_message, HasSubstr("No such file"));
  }
}

TEST(SimLaunchTest, ARankThatComesTwiceEndsTheWaitOfAll) {
  LaunchOptions options = on_two_hosts(4, "eth0");
  options.processes[1] = options.processes[0];
  options.processes[1].host = 1;
  for (const LaunchResult& process : run_launch(options).processes) {
    EXPECT_EQ(process.error_kind, "rank_taken");
    EXPECT_THAT(process.error_message, HasSubstr("rank 0 of group 'world'"));
    EXPECT_LT(process.ended_at_ns, 100 * kMs);
  }
}

// Two ranks that were told of two, and a third that was told of three: they are complete without
// it.
TEST(SimLaunchTest, ASmallerWorldMeetsBesideAStrangerOrNotAtAllInAnySchedule) {
  LaunchOptions options = of_ranks(3);
  options.processes[0].world_size = options.processes[1].world_size = 2;
  std::size_t num_met = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const auto& processes = run_launch(options, random_world_of(3, seed)).processes;
    EXPECT_EQ(processes[0].error_kind, processes[1].error_kind) << "seed " << seed;
    EXPECT_THAT(processes[0].error_kind, AnyOf("", "world_sizes_differ")) << "seed " << seed;
    EXPECT_EQ(processes[2].error_kind, "world_sizes_differ") << "seed " << seed;
    EXPECT_LT(processes[2].ended_at_ns, 100 * kMs);
    num_met += processes[0].error_kind.empty() ? 1 : 0;
  }
  EXPECT_THAT(num_met, AllOf(Gt(0), Lt(300)));  // both come about
}

// Rank 2 comes twice: a rank that looks before all are there goes away, and one that comes later
// finds them complete. Neither may wait for the other.
TEST(SimLaunchTest, AGroupThatWasDisturbedMeetsAsAWholeOrNotAtAllInAnySchedule) {
  LaunchOptions options = of_ranks(3);
  options.processes.push_back(options.processes[2]);
  std::size_t num_met = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::size_t num_failed = 0;
    for (const LaunchResult& process : run_launch(options, random_world_of(4, seed)).processes) {
      EXPECT_THAT(process.error_kind, AnyOf("", "rank_taken")) << "seed " << seed;
      num_failed += process.error_kind.empty() ? 0 : 1;
    }
    EXPECT_THAT(num_failed, AnyOf(1, 4)) << "seed " << seed;
    num_met += num_failed == 1 ? 1 : 0;
  }
  EXPECT_THAT(num_met, AllOf(Gt(0), Lt(300)));  // both come about
}

TEST(SimLaunchTest, RanksOutsideOfTheWorldAndOtherWorldSizesAreRefused) {
  LaunchOptions options = of_ranks(3);
  options.processes[2].rank = 3;
  options.timeout_ms = 50;
  LaunchRun run = run_launch(options);
  EXPECT_EQ(run.processes[2].error_kind, "rank_out_of_range");
  EXPECT_EQ(run.processes[0].error_kind, "timed_out");
  EXPECT_THAT(run.processes[0].error_message, HasSubstr("missing: 2"));
  EXPECT_GE(run.processes[0].ended_at_ns, 50 * kMs);
  EXPECT_LT(run.processes[0].ended_at_ns, 60 * kMs);

  options = of_ranks(4);
  options.processes[1].world_size = 3;
  for (const LaunchResult& process : run_launch(options).processes) {
    EXPECT_EQ(process.error_kind, "world_sizes_differ");
  }
}

TEST(SimLaunchTest, TheSameLaunchIsTheSameRun) {
  const auto hash = [](std::uint64_t seed) {
    return run_launch(of_ranks(4), random_world_of(4, seed)).world.trace.hash;
  };
  EXPECT_EQ(hash(1), hash(1));
  EXPECT_NE(hash(1), hash(2));
}

TEST(SimLaunchTest, ALaunchOfNothingIsRefused) {
  EXPECT_THROW(run_launch({}), UsageError);
  LaunchOptions options = of_ranks(1);
  options.processes[0].host = 7;
  EXPECT_THROW(run_launch(options), UsageError);
}

}  // namespace
}  // namespace lockstep::test
