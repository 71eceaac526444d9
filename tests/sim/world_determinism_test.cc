// SPDX-License-Identifier: Apache-2.0
// Same options and body: same schedule, same bits, same trace hash; and the hash sees differences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "sim/world.h"
#include "tests/sim/simulate.h"

namespace lockstep::test {
namespace {

using sim::RankContext;
using sim::WorldResult;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Three steps of gradient-like traffic; `scale` changes the data and nothing else.
void traffic(RankContext& rank, double scale) {
  for (std::int64_t step = 0; step < 3; ++step) {
    rank.observer().on_event({EventKind::kStepBegin, step});
    std::vector<std::unique_ptr<Work>> in_flight;
    std::vector<at::Tensor> buckets;
    for (std::int64_t bucket = 0; bucket < 3; ++bucket) {
      rank.observer().on_event({EventKind::kGradientReady, bucket});
      buckets.push_back(at::rand({17}) * scale);
      in_flight.push_back(
          rank.communicator().all_reduce(buckets.back(), ReduceOp::kSum, bucket_tag(step, bucket)));
      rank.observer().on_event({EventKind::kBucketLaunched, bucket});
    }
    rank.sleep_ns(10 * rank.rank());
    for (const auto& work : in_flight) {
      work->wait();
    }
  }
}

std::uint64_t hash_of(const sim::WorldOptions& options, double scale = 1.0) {
  torch::manual_seed(1);
  return sim::run_world(options, [&](RankContext& rank) { traffic(rank, scale); }).trace.hash;
}

TEST(WorldDeterminismTest, RepeatsTheTraceHash) {
  EXPECT_EQ(hash_of(world_of(4)), hash_of(world_of(4)));
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(hash_of(random_world_of(4, seed)), hash_of(random_world_of(4, seed)));
  }
}

TEST(WorldDeterminismTest, HasAnotherHashForEachSeedAndPolicy) {
  std::set<std::uint64_t> hashes = {hash_of(world_of(4))};
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    hashes.insert(hash_of(random_world_of(4, seed)));
  }
  EXPECT_EQ(hashes.size(), 21U);
}

TEST(WorldDeterminismTest, HasAnotherHashForOtherDataInTheSameSchedule) {
  EXPECT_NE(hash_of(world_of(4), 1.0), hash_of(world_of(4), 2.0));
}

TEST(WorldDeterminismTest, HasTheSameHashWhetherOrNotEntriesAreKept) {
  sim::WorldOptions options = random_world_of(3, 4);
  const std::uint64_t hash = hash_of(options);
  options.keep_trace = true;
  EXPECT_EQ(hash_of(options), hash);
}

TEST(WorldDeterminismTest, ReducesToTheSameBitsUnderEverySchedule) {
  const auto results = [](const sim::WorldOptions& options) {
    std::vector<at::Tensor> sums(3);
    torch::manual_seed(3);
    sim::run_world(options, [&](RankContext& rank) {
      at::Tensor values = at::rand({1000}) * static_cast<double>(1 + rank.rank());
      rank.yield();
      sum_and_wait(rank, values);
      sums[static_cast<std::size_t>(rank.rank())] = values;
    });
    return sums;
  };
  const auto expected = results(world_of(3));
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const auto actual = results(random_world_of(3, seed));
    for (const std::size_t rank : {0U, 1U, 2U}) {
      EXPECT_TRUE(at::equal(actual[rank], expected[0]));
    }
  }
}

std::vector<std::string> lines_of(const sim::Trace& trace) {
  std::vector<std::string> lines;
  for (const auto& entry : trace.entries) {
    lines.push_back(fmt::format("{} {} {} {}", entry.rank, to_string(entry.event.kind),
                                entry.event.index, entry.detail));
  }
  return lines;
}

TEST(TraceTest, TellsACollectiveFromIssueToEnd) {
  sim::WorldOptions options = world_of(2);
  options.keep_trace = true;
  const WorldResult result =
      sim::run_world(options, [](RankContext& rank) { sum_and_wait(rank, at::ones({2})); });
  const std::string what = "all_reduce (script, 2 x Float)";
  EXPECT_THAT(lines_of(result.trace),
              ElementsAre("0 resumed -1 ", "0 rank_started -1 ", "0 posted 0 " + what,
                          "0 wait_begin 0 " + what,  //
                          "1 resumed -1 ", "1 rank_started -1 ", "1 posted 0 " + what,
                          "0 completed 0 " + what, "1 completed 0 " + what, "1 rank_ended 0 ",
                          "0 resumed -1 ", "0 wait_end 0 " + what, "0 rank_ended 0 "));
  EXPECT_EQ(result.trace.num_events, static_cast<std::int64_t>(result.trace.entries.size()));
}

TEST(TraceTest, KeepsNoEntriesUnlessAsked) {
  const WorldResult result = simulate(2, barrier_and_wait);
  EXPECT_THAT(result.trace.entries, IsEmpty());
  EXPECT_GT(result.trace.num_events, 0);
}

}  // namespace
}  // namespace lockstep::test
