// SPDX-License-Identifier: Apache-2.0
// Rounds against closed formulas, and the closed form against the rounds.
#include "sim/timing/collective.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/timing/small_setup.h"

namespace lockstep::test {
namespace {

using sim::timing::Algorithm;
using sim::timing::choose_collective;
using sim::timing::Collective;
using sim::timing::Hop;
using sim::timing::Ps;

constexpr double kUs = 1e6;  // in ps
constexpr double kNs = 1e3;

constexpr Algorithm kAll[] = {Algorithm::kRing, Algorithm::kHalvingDoubling, Algorithm::kTree,
                              Algorithm::kHierarchical, Algorithm::kGlooRing};

// The definition of a round, Note [How a collective takes time], in the plainest way.
std::vector<Ps> ends_by_rounds(const Collective& collective, std::vector<Ps> at) {
  for (std::int64_t round = 0; round < collective.num_rounds(); ++round) {
    std::vector<Ps> next = at;
    for (std::size_t rank = 0; rank < at.size(); ++rank) {
      const Hop hop = collective.hop(static_cast<std::int64_t>(rank), round);
      if (hop.to >= 0) next[rank] = at[rank] + collective.round_ps(round);
      if (hop.from >= 0) {
        next[rank] = std::max(next[rank],
                              at[static_cast<std::size_t>(hop.from)] + collective.round_ps(round));
      }
    }
    at = next;
  }
  return at;
}

// 2 (W-1) rounds of latency + n / (W B): 2 (W-1) 10 us + 2 (W-1)/W n * 1 ns.
TEST(CollectiveTest, ARingTakesTwiceNearlyAllBytesAndTwiceNearlyAllLatencies) {
  for (const std::int64_t ranks : {2, 4, 5, 256, 1'000'000}) {
    const double bytes = 1000.0 * static_cast<double>(ranks);
    const Collective ring(flat_setup(ranks), Algorithm::kRing, bytes);
    const double hops = 2.0 * static_cast<double>(ranks - 1);
    const double expected = hops * 10 * kUs + hops / static_cast<double>(ranks) * bytes * kNs;
    EXPECT_EQ(static_cast<double>(ring.duration_ps()), expected) << ranks;
  }
}

// 2 log2 W latencies, and the ring's bytes: n/2 + n/4 + ... = (W-1)/W n, there and back.
TEST(CollectiveTest, HalvingDoublingMovesTheRingsBytesInLogarithmicallyManyRounds) {
  const Collective exchange(flat_setup(16), Algorithm::kHalvingDoubling, 16'000.0);
  EXPECT_EQ(exchange.num_rounds(), 8);
  EXPECT_EQ(static_cast<double>(exchange.duration_ps()), 8 * 10 * kUs + 2 * 15'000 * kNs);
}

// Two extra ranks hand over all bytes first and get all back: 2 (10 us + n) more.
TEST(CollectiveTest, HalvingDoublingFoldsExtraRanksIn) {
  const Collective exchange(flat_setup(6), Algorithm::kHalvingDoubling, 4'000.0);
  EXPECT_EQ(static_cast<double>(exchange.duration_ps()),
            4 * 10 * kUs + 2 * 3'000 * kNs + 2 * (10 * kUs + 4'000 * kNs));
}

// 2 ceil(log2 W) (latency + n / B).
TEST(CollectiveTest, ATreeSendsAllBytesUpAndDown) {
  for (const auto& [ranks, depth] :
       std::vector<std::pair<std::int64_t, int>>{{2, 1}, {8, 3}, {1024, 10}}) {
    const Collective tree(flat_setup(ranks), Algorithm::kTree, 5'000.0);
    EXPECT_EQ(static_cast<double>(tree.duration_ps()), 2.0 * depth * (10 * kUs + 5'000 * kNs));
  }
}

// 4 ranks on each of 2 nodes, n = 8000: 2 * 3 rounds of 2000 bytes inside; between them 2 rounds of
// 1000 bytes, which are 4 flows over the node's link.
TEST(CollectiveTest, HierarchicalSharesTheLinkOfANodeAmongItsRanks) {
  const Collective h(node_setup(8, 4), Algorithm::kHierarchical, 8'000.0);
  EXPECT_EQ(static_cast<double>(h.duration_ps()),
            6 * (1 * kUs + 2'000 * 0.1 * kNs) + 2 * (10 * kUs + 4 * 1'000 * kNs));
}

// A ring over 2 nodes of 4: 1000 bytes per round at the pace of the link between nodes; 2 of its 8
// links are such.
TEST(CollectiveTest, ARingOverNodesHasTheSlowestTransferAndTheMeanLatency) {
  const Collective ring(node_setup(8, 4), Algorithm::kRing, 8'000.0);
  EXPECT_EQ(static_cast<double>(ring.duration_ps()),
            14 * ((2 * 10 * kUs + 6 * 1 * kUs) / 8 + 1'000 * kNs));
}

// 8 nodes, 4 below each of 2 switches, 8 to 1 oversubscribed: an uplink has 4/8 of a node's rate.
// Exchanges at distance 4 cross it with 4 flows each way; the ring with one.
TEST(CollectiveTest, OversubscriptionHurtsExchangesMoreThanTheRing) {
  TimingSetup setup = flat_setup(8);
  const double ring_ps =
      static_cast<double>(Collective(setup, Algorithm::kRing, 8'000.0).duration_ps());
  const double exchange_ps =
      static_cast<double>(Collective(setup, Algorithm::kHalvingDoubling, 8'000.0).duration_ps());
  setup.world.nodes_per_switch = 4;
  setup.network.oversubscription = 8.0;
  EXPECT_EQ(static_cast<double>(Collective(setup, Algorithm::kRing, 8'000.0).duration_ps()),
            ring_ps + 14 * 1'000 * kNs);
  EXPECT_EQ(
      static_cast<double>(Collective(setup, Algorithm::kHalvingDoubling, 8'000.0).duration_ps()),
      exchange_ps + 2 * 7 * 1'000 * kNs);
}

// W-1 of the 2 (W-1) rounds of a ring add n/W bytes at 2 GB/s.
TEST(CollectiveTest, SumsTakeTimeInTheRoundsThatAdd) {
  TimingSetup setup = flat_setup(4);
  setup.network.reduce_gbyte_per_s = 2.0;
  EXPECT_EQ(static_cast<double>(Collective(setup, Algorithm::kRing, 4'000.0).duration_ps()),
            6 * (10 * kUs + 1'000 * kNs) + 3 * 1'000 * 0.5 * kNs);
}

TEST(CollectiveTest, RanksSendTwiceTheGradientsButTheirOwnShare) {
  for (const Algorithm algorithm : kAll) {
    const double bytes = 1.6e6;
    const double sent = Collective(node_setup(16, 4), algorithm, bytes).wire_bytes();
    // The tree has W-1 messages up and as many down; the others 2 (W-1)/W n per rank. Hierarchical:
    // 2 (3/4 + 1/4 * 3/4) n per rank, which is the same.
    EXPECT_EQ(sent, 2 * 15 * bytes) << to_string(algorithm);
  }
}

// By their formulas, in us and with n in MB: 64 flat ranks, few bytes: 12 latencies beat 126. 48
// ranks, 1 GB: the ring 2 * 47/48 * 1000 MB beats handing all of it over twice more. 8 nodes of 8
// below two switches, 4 to 1: 8 flows of the rings cross an uplink, and 32 of the exchanges.
TEST(CollectiveTest, AutoTakesTheQuickest) {
  TimingSetup setup = flat_setup(64);
  setup.network.algorithm = "auto";
  EXPECT_EQ(choose_collective(setup, 4.0).algorithm(), Algorithm::kHalvingDoubling);
  setup.world.ranks = 48;
  EXPECT_EQ(choose_collective(setup, 1e9).algorithm(), Algorithm::kRing);
  TimingSetup nodes = node_setup(64, 8);
  nodes.network.algorithm = "auto";
  EXPECT_EQ(choose_collective(nodes, 1e6).algorithm(), Algorithm::kHalvingDoubling);
  nodes.world.nodes_per_switch = 4;
  nodes.network.oversubscription = 4.0;
  EXPECT_EQ(choose_collective(nodes, 1e6).algorithm(), Algorithm::kHierarchical);
}

TEST(CollectiveTest, OneRankNeedsNoRounds) {
  for (const Algorithm algorithm : kAll) {
    const Collective alone(flat_setup(1), algorithm, 1e9);
    EXPECT_EQ(alone.num_rounds(), 0);
    EXPECT_EQ(alone.duration_ps(), 0);
    EXPECT_EQ(alone.wire_bytes(), 0.0);
  }
}

TEST(CollectiveTest, TooLongATimeIsRefused) {
  EXPECT_THROW(Collective(flat_setup(1'000'000), Algorithm::kTree, 1e18), UsageError);
}

TimingSetup drawn_world() {
  const auto per_node = *rc::gen::inRange<std::int64_t>(1, 7);
  const auto nodes = *rc::gen::inRange<std::int64_t>(1, 13);
  TimingSetup setup = node_setup(per_node * nodes, per_node);
  const auto per_switch = *rc::gen::inRange<std::int64_t>(1, 5);
  if (nodes % per_switch == 0) {
    setup.world.nodes_per_switch = per_switch;
    setup.network.oversubscription = *rc::gen::element(1.0, 3.0);
  }
  setup.network.reduce_gbyte_per_s = *rc::gen::element(0.0, 1.5);
  return setup;
}

// Who sends is received from, in the same round.
RC_GTEST_PROP(CollectiveProps, EveryMessageHasBothEnds, ()) {
  const TimingSetup setup = drawn_world();
  const Collective collective(setup, *rc::gen::elementOf(std::vector<Algorithm>(kAll, kAll + 4)),
                              1e4);
  for (std::int64_t round = 0; round < collective.num_rounds(); ++round) {
    for (std::int64_t rank = 0; rank < setup.world.ranks; ++rank) {
      const Hop hop = collective.hop(rank, round);
      if (hop.to >= 0) RC_ASSERT(collective.hop(hop.to, round).from == rank);
      if (hop.from >= 0) RC_ASSERT(collective.hop(hop.from, round).to == rank);
    }
  }
}

// hub = max(begin + up), end = hub + down, whatever the begins; and roles say all about up and
// down.
RC_GTEST_PROP(CollectiveProps, TheClosedFormIsWhatTheRoundsGive, ()) {
  const TimingSetup setup = drawn_world();
  const auto ranks = static_cast<std::size_t>(setup.world.ranks);
  const Algorithm algorithm = *rc::gen::elementOf(std::vector<Algorithm>(kAll, kAll + 4));
  Collective collective(setup, algorithm, *rc::gen::element(0.0, 7.0, 12'345.0, 1e7));
  if (*rc::gen::arbitrary<bool>()) collective = collective.slowed(1.37);
  const auto begins = *rc::gen::container<std::vector<Ps>>(
      ranks, rc::gen::inRange<Ps>(0, *rc::gen::element<Ps>(1, 1'000'000, 1'000'000'000)));
  Ps hub = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    hub = std::max(hub, begins[r] + collective.up_ps(static_cast<std::int64_t>(r)));
  }
  const std::vector<Ps> ends = ends_by_rounds(collective, begins);
  for (std::size_t r = 0; r < ranks; ++r) {
    RC_ASSERT(ends[r] == hub + collective.down_ps(static_cast<std::int64_t>(r)));
    for (std::size_t q = 0; q < r; ++q) {
      const auto rank = static_cast<std::int64_t>(r);
      const auto other = static_cast<std::int64_t>(q);
      if (collective.role(rank) != collective.role(other)) continue;
      RC_ASSERT(collective.up_ps(rank) == collective.up_ps(other));
      RC_ASSERT(collective.down_ps(rank) == collective.down_ps(other));
    }
  }
  const std::vector<Ps> together = ends_by_rounds(collective, std::vector<Ps>(ranks, 0));
  RC_ASSERT(collective.duration_ps() == *std::max_element(together.begin(), together.end()));
}

}  // namespace
}  // namespace lockstep::test
