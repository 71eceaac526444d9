// SPDX-License-Identifier: Apache-2.0
// The one rank that stands for all, against every rank and every message.
#include "sim/timing/gloo_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "sim/timing/collective.h"
#include "sim/timing/prediction.h"

namespace lockstep::sim::timing {
namespace {

constexpr double kMs = 1e9;               // in picoseconds
constexpr double kMbit = 1e6 / 8 / 1e12;  // in bytes per picosecond
constexpr double kUnlimited = std::numeric_limits<double>::infinity();

/// What happens when; what is due at the same time happens in the order in which it was planned.
class Agenda {
 public:
  double now_ps = 0.0;
  void at(double ps, std::function<void()> what) { due_.emplace(ps, std::move(what)); }
  void run() {
    while (!due_.empty()) {
      const auto next = due_.begin();
      now_ps = next->first;
      const auto what = std::move(next->second);
      due_.erase(next);
      what();
    }
  }

 private:
  std::multimap<double, std::function<void()>> due_;
};

/// Requests, data and sums of all ranks, from the description in the header alone.
class AllRanks {
 public:
  AllRanks(std::int64_t ranks, double bytes, const RingLink& link)
      : ranks_(static_cast<std::size_t>(ranks)), link_(link), state_(ranks_) {
    const std::int64_t mebibytes = static_cast<std::int64_t>(std::ceil(bytes / (1 << 20)));
    std::int64_t segments = 2 * ranks;
    while (segments < mebibytes) segments += ranks;
    segments_ = (ranks - 1) * (segments / ranks);
    segment_bytes_ = bytes / static_cast<double>(segments);
  }

  double finish_ps() {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      state_[rank].paid_ps = -link_.latency_ps;
      agenda_.at(2 * link_.latency_ps, [this, rank] { begin_half(rank); });
    }
    agenda_.run();
    return agenda_.now_ps;
  }

 private:
  struct Rank {
    int half = -1;                                      // 0: reduce-scatter, 1: all-gather
    std::int64_t added = 0;                             // segments of this half
    double adding_until_ps = 0.0;                       // one sum at a time
    double free_ps = 0.0, paid_ps = 0.0;                // of its link
    std::map<std::pair<int, std::int64_t>, int> sides;  // posted here, asked for there
  };

  std::size_t next(std::size_t rank) const { return (rank + 1) % ranks_; }
  std::size_t previous(std::size_t rank) const { return (rank + ranks_ - 1) % ranks_; }

  void begin_half(std::size_t rank) {
    ++state_[rank].half;
    state_[rank].added = 0;
    post(rank, 0);
    post(rank, 1);
  }

  // Data goes to the rank before, and is asked for from the rank after.
  void post(std::size_t rank, std::int64_t segment) {
    if (segment >= segments_) return;
    Rank& self = state_[rank];
    const int half = self.half;
    double wait_ps = std::max(0.0, self.free_ps - agenda_.now_ps);
    if (ranks_ > 2) wait_ps = std::min(wait_ps, link_.backlog_bytes / link_.bytes_per_ps);
    const std::size_t sender = next(rank);
    agenda_.at(agenda_.now_ps + wait_ps + link_.latency_ps,
               [this, sender, half, segment] { one_side(sender, half, segment); });
    one_side(rank, half, segment);
  }

  void one_side(std::size_t rank, int half, std::int64_t segment) {
    Rank& self = state_[rank];
    if (++self.sides[{half, segment}] < 2) return;
    const double now_ps = agenda_.now_ps;
    self.paid_ps = std::max(self.paid_ps, now_ps - link_.burst_bytes / link_.bytes_per_ps) +
                   segment_bytes_ / link_.bytes_per_ps;
    self.free_ps = std::max(now_ps, self.paid_ps);
    const std::size_t receiver = previous(rank);
    agenda_.at(self.free_ps + link_.latency_ps, [this, receiver] { received(receiver); });
  }

  void received(std::size_t rank) {
    Rank& self = state_[rank];
    const bool sums = self.half == 0 && link_.reduce_bytes_per_ps > 0;
    self.adding_until_ps = std::max(self.adding_until_ps, agenda_.now_ps) +
                           (sums ? segment_bytes_ / link_.reduce_bytes_per_ps : 0.0);
    agenda_.at(self.adding_until_ps, [this, rank] { added(rank); });
  }

  void added(std::size_t rank) {
    Rank& self = state_[rank];
    post(rank, ++self.added + 1);
    if (self.added == segments_ && self.half == 0) begin_half(rank);
  }

  const std::size_t ranks_;
  const RingLink link_;
  std::int64_t segments_ = 0;
  double segment_bytes_ = 0.0;
  std::vector<Rank> state_;
  Agenda agenda_;
};

RingLink link_of(double latency_ms, double mbit) {
  RingLink link;
  link.latency_ps = latency_ms * kMs;
  link.bytes_per_ps = mbit * kMbit;
  return link;
}

double total_ps(const GlooRingTimes& times) {
  return times.entry_ps + times.reduce_scatter_ps + times.all_gather_ps;
}

TEST(GlooRingTest, OneRankTakesAsLongAsAllOfThemMessageByMessage) {
  for (const std::int64_t ranks : {2, 3, 4, 7}) {
    for (const double bytes : {4096.0, 300e3, 1e6, 5e6, 3e7}) {
      for (const double latency_ms : {0.05, 1.0, 7.0}) {
        for (const double burst_bytes : {0.0, 18e3}) {
          for (const double backlog_bytes : {0.0, 64e3, kUnlimited}) {
            for (const double reduce_bytes_per_ps : {0.0, 2e-3}) {
              RingLink link = link_of(latency_ms, 200);
              link.burst_bytes = burst_bytes;
              link.backlog_bytes = backlog_bytes;
              link.reduce_bytes_per_ps = reduce_bytes_per_ps;
              const double expected_ps = AllRanks(ranks, bytes, link).finish_ps();
              ASSERT_NEAR(total_ps(gloo_ring_times(ranks, bytes, link)) / expected_ps, 1.0, 1e-12)
                  << ranks << " ranks, " << bytes << " bytes, " << latency_ms << " ms, burst "
                  << burst_bytes << ", backlog " << backlog_bytes;
            }
          }
        }
      }
    }
  }
}

TEST(GlooRingTest, SmallOnesTakeTwoLatenciesPerHopAndTwoForTheEntry) {
  for (const std::int64_t ranks : {2, 4, 8}) {
    const double latencies = total_ps(gloo_ring_times(ranks, 8, link_of(1, 1e6))) / kMs;
    EXPECT_NEAR(latencies, 2 + 2 * 2 * static_cast<double>(ranks - 1), 0.001);
  }
}

TEST(GlooRingTest, TwoRanksWithTwoSegmentsPerChunkKeepTheLinkBusyInEachHalf) {
  // 2 latencies for the entry; a half sends n/2 after a request and ends a latency after that.
  const double bytes = 4 << 20;
  const GlooRingTimes times = gloo_ring_times(2, bytes, link_of(1, 100));
  EXPECT_DOUBLE_EQ(times.entry_ps, 2 * kMs);
  EXPECT_NEAR(times.reduce_scatter_ps, 2 * kMs + bytes / 2 / (100 * kMbit), 1.0);
  EXPECT_NEAR(times.all_gather_ps, times.reduce_scatter_ps, 1.0);
}

TEST(GlooRingTest, TwoRanksLoseALatencyPerSegmentBeyondTheSecond) {
  // 4 segments of 1 MiB a half; the request for the third waits for the second to have left, which
  // then finds the link idle, and so does the fourth.
  const double bytes = 8 << 20;
  const GlooRingTimes times = gloo_ring_times(2, bytes, link_of(1, 100));
  EXPECT_NEAR(times.all_gather_ps, 4 * kMs + bytes / 2 / (100 * kMbit), 1.0);
}

TEST(GlooRingTest, MoreRanksHideThatLatencyUnlessRequestsQueueBehindData) {
  RingLink link = link_of(1, 100);
  const double bytes = 8 << 20;  // 6 segments of 1 MiB a half, 84 ms each
  const double transfer_ps = 0.75 * bytes / (100 * kMbit);
  EXPECT_NEAR(gloo_ring_times(4, bytes, link).all_gather_ps, 2 * kMs + transfer_ps, 1.0);
  link.backlog_bytes = kUnlimited;
  EXPECT_NEAR(gloo_ring_times(4, bytes, link).all_gather_ps, 6 * kMs + transfer_ps, 1.0);
}

TEST(GlooRingTest, ABurstIsGainedAfterEachPause) {
  RingLink link = link_of(2, 100);
  const double bytes = 1 << 20;
  const double without_ps = total_ps(gloo_ring_times(2, bytes, link));
  link.burst_bytes = 20e3;  // 1.6 ms; the pauses before both halves are longer
  EXPECT_NEAR(total_ps(gloo_ring_times(2, bytes, link)),
              without_ps - 2 * link.burst_bytes / link.bytes_per_ps, 1.0);
}

Setup setup_of(std::int64_t ranks) {
  Setup setup;
  setup.world.ranks = ranks;
  setup.network.algorithm = "gloo_ring";
  setup.network.latency_us = 700;
  setup.network.bandwidth_gbit_per_s = 0.2;
  setup.network.burst_bytes = 18e3;
  setup.network.backlog_bytes = 18e3;
  setup.network.reduce_gbyte_per_s = 1.5;
  LayerSetup layer;
  layer.count = 6;
  layer.parameters = {100'000};
  layer.forward_us = 1000;
  setup.layers = {layer};
  setup.ddp.bucket_cap_bytes = 600'000;
  return setup;
}

TEST(GlooRingTest, ACollectiveOfASetupTakesAsLong) {
  for (const std::int64_t ranks : {2, 4, 7}) {
    RingLink link = link_of(0.7, 200);
    link.burst_bytes = link.backlog_bytes = 18e3;
    link.reduce_bytes_per_ps = 1.5e-3;
    const Collective collective = choose_collective(setup_of(ranks), 1e6);
    EXPECT_EQ(collective.algorithm(), Algorithm::kGlooRing);
    EXPECT_NEAR(static_cast<double>(collective.duration_ps()),
                total_ps(gloo_ring_times(ranks, 1e6, link)), 2.0 * static_cast<double>(ranks));
    EXPECT_DOUBLE_EQ(collective.wire_bytes(), 2e6 * static_cast<double>(ranks - 1));
  }
}

TEST(GlooRingTest, AutoIsNeverOneTransportsWay) {
  auto setup = setup_of(4);
  setup.network.algorithm = "auto";
  setup.network.latency_us = 0;
  EXPECT_NE(choose_collective(setup, 1e6).algorithm(), Algorithm::kGlooRing);
}

TEST(GlooRingTest, FoldedRanksTakeAsLongAsAllOfThem) {
  for (const std::int64_t ranks : {2, 4, 7}) {
    auto setup = setup_of(ranks);
    setup.jitter.compute = 0.2;
    setup.jitter.network = 0.1;
    const Prediction folded = simulate_folded(setup);
    const Prediction unfolded = simulate_unfolded(setup);
    EXPECT_TRUE(folded.steps == unfolded.steps);
    EXPECT_TRUE(folded.timeline == unfolded.timeline);
  }
}

}  // namespace
}  // namespace lockstep::sim::timing
