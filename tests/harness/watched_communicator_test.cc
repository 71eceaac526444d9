// SPDX-License-Identifier: Apache-2.0
// What a watched communicator knows of its rank while collectives come and go.
#include "harness/execute/watched_communicator.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "tests/support/local_communicator.h"

namespace lockstep::harness {
namespace {

using test::LocalCommunicator;
using test::LocalGroup;

constexpr CollectiveTag kTag{CallSite::kBucket, 2, 1};

struct TwoRanks {
  std::shared_ptr<LocalGroup> group = std::make_shared<LocalGroup>(2);
  WatchedCommunicator rank_0{std::make_unique<LocalCommunicator>(group, 0)};
  WatchedCommunicator rank_1{std::make_unique<LocalCommunicator>(group, 1)};
};

TEST(WatchedCommunicatorTest, PassesCollectivesThrough) {
  TwoRanks ranks;
  const at::Tensor a = at::full({3}, 1.0), b = at::full({3}, 2.0);
  const auto work_0 = ranks.rank_0.all_reduce(a, ReduceOp::kSum, kTag);
  const auto work_1 = ranks.rank_1.all_reduce(b, ReduceOp::kSum, kTag);
  work_0->wait();
  work_1->wait();
  EXPECT_TRUE(at::equal(a, at::full({3}, 3.0)));
  EXPECT_TRUE(at::equal(b, a));
  EXPECT_EQ(ranks.rank_1.rank(), 1);
  EXPECT_EQ(ranks.rank_1.world_size(), 2);
}

TEST(WatchedCommunicatorTest, EveryLaunchAndEveryEndIsProgress) {
  TwoRanks ranks;
  EXPECT_EQ(ranks.rank_0.standing().progress, 0);
  const auto work = ranks.rank_0.barrier(kTag);
  EXPECT_EQ(ranks.rank_0.standing().progress, 1);
  EXPECT_EQ(ranks.rank_0.standing().posted, 1);
  ranks.rank_1.barrier(kTag);
  work->wait();
  EXPECT_EQ(ranks.rank_0.standing().progress, 2);
  EXPECT_EQ(ranks.rank_0.standing().posted, 1);
}

TEST(WatchedCommunicatorTest, AnUnwaitedCollectiveIsNoWaiting) {
  TwoRanks ranks;
  const auto work = ranks.rank_0.barrier(kTag);
  EXPECT_FALSE(ranks.rank_0.standing().waiting.has_value());
}

TEST(WatchedCommunicatorTest, KnowsTheCollectiveItsRankWaitsIn) {
  TwoRanks ranks;
  ranks.rank_0.barrier(kTag);
  const auto work = ranks.rank_0.broadcast(at::zeros({2, 5}, at::kDouble), 1, kTag);
  std::thread waits([&] { work->wait(); });
  while (!ranks.rank_0.standing().waiting) {
    std::this_thread::yield();
  }
  const sim::CollectiveInfo info = *ranks.rank_0.standing().waiting;
  ranks.rank_1.barrier(kTag);
  ranks.rank_1.broadcast(at::zeros({2, 5}, at::kDouble), 1, kTag);
  waits.join();
  EXPECT_EQ(info.seq, 1);
  EXPECT_EQ(info.kind, CollectiveKind::kBroadcast);
  EXPECT_EQ(info.tag, kTag);
  EXPECT_EQ(info.numel, 10);
  EXPECT_EQ(info.dtype, "Double");
  EXPECT_EQ(info.root, 1);
  EXPECT_FALSE(ranks.rank_0.standing().waiting.has_value());
  EXPECT_FALSE(ranks.rank_0.standing().failed_in.has_value());
}

TEST(WatchedCommunicatorTest, RemembersTheFirstCollectiveThatFailed) {
  TwoRanks ranks;
  std::vector<std::unique_ptr<Work>> works;
  for (int i = 0; i < 3; ++i) {
    works.push_back(ranks.rank_0.barrier(kTag));
  }
  ranks.group->leave(1);
  EXPECT_THROW(works[1]->wait(), PeerLost);
  EXPECT_THROW(works[2]->wait(), PeerLost);
  ASSERT_TRUE(ranks.rank_0.standing().failed_in.has_value());
  EXPECT_EQ(ranks.rank_0.standing().failed_in->seq, 1);
}

TEST(WatchedCommunicatorTest, AbandoningDestroysWhatIsInsideAndRefusesMore) {
  struct Witness final : LocalCommunicator {
    Witness(std::shared_ptr<LocalGroup> group, bool& is_alive)
        : LocalCommunicator(std::move(group), 0), is_alive_(is_alive) {
      is_alive_ = true;
    }
    ~Witness() override { is_alive_ = false; }
    bool& is_alive_;
  };
  bool is_alive = false;
  WatchedCommunicator watched(std::make_unique<Witness>(std::make_shared<LocalGroup>(1), is_alive));
  watched.barrier(kTag)->wait();
  ASSERT_TRUE(is_alive);
  watched.abandon();
  EXPECT_FALSE(is_alive);
  EXPECT_THROW(watched.barrier(kTag), CommError);
  EXPECT_EQ(watched.standing().posted, 1);
  watched.abandon();
  EXPECT_EQ(watched.rank(), 0);
}

}  // namespace
}  // namespace lockstep::harness
