// SPDX-License-Identifier: Apache-2.0
// What the Gloo transport promises beyond the contract of every transport: order, errors, ends.
#include "core/gloo_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <future>
#include <thread>
#include <vector>

#include "core/error.h"
#include "tests/contract/gloo_world.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr milliseconds kForever{600'000};

CollectiveTag bucket_tag(std::int64_t step, std::int64_t bucket) {
  return {CallSite::kBucket, step, bucket};
}

at::Tensor filled(std::int64_t numel, double value) { return at::full({numel}, value); }

GlooOptions with_timeout(milliseconds timeout) {
  GlooOptions options;
  options.timeout = timeout;
  return options;
}

/// Waits until another rank's thread is seen in `status`, giving the processor away meanwhile.
template <typename Condition>
CommunicatorStatus await_status(const GlooCommunicator& communicator, const Condition& condition) {
  CommunicatorStatus status = communicator.status();
  while (!condition(status)) {
    std::this_thread::yield();
    status = communicator.status();
  }
  return status;
}

TEST(GlooCommunicatorTest, LaunchesDoNotWaitForOtherRanksAndRunInIssueOrder) {
  constexpr std::int64_t kNumCollectives = 40;
  GlooWorld world(2);
  std::promise<void> all_launched;
  world.run([&](GlooCommunicator& communicator) {
    const auto rank = static_cast<double>(communicator.rank());
    if (communicator.rank() == 1) {
      all_launched.get_future().wait();
    }
    // Each collective reads what the one before it left: x becomes 2 x + 1 in turn.
    at::Tensor tensor = filled(3, rank);
    std::vector<std::unique_ptr<Work>> works;
    for (std::int64_t i = 0; i < kNumCollectives; ++i) {
      if (i % 2 == 0) {
        works.push_back(communicator.all_reduce(tensor, ReduceOp::kSum, bucket_tag(0, i)));
      } else {
        works.push_back(communicator.broadcast(tensor, i % 4 == 1 ? 0 : 1, bucket_tag(0, i)));
      }
    }
    if (communicator.rank() == 0) {
      EXPECT_EQ(communicator.status().posted, kNumCollectives);
      all_launched.set_value();
    }
    for (const auto& work : works) {
      work->wait();
    }
    // The first sum is 0 + 1; each of the 19 later ones doubles it.
    EXPECT_TRUE(tensor.equal(filled(3, 0x1p19))) << tensor;
    EXPECT_EQ(communicator.status().completed, kNumCollectives);
  });
}

TEST(GlooCommunicatorTest, AGatherFillsRowsByRankAlsoInPlace) {
  GlooWorld world(3);
  world.run([](GlooCommunicator& communicator) {
    const std::int64_t rank = communicator.rank();
    const at::Tensor expected = at::arange(3, at::kLong).unsqueeze(1).expand({3, 5}).contiguous();
    at::Tensor output = at::full({3, 5}, -1, at::kLong);
    communicator.all_gather(output, at::full({5}, rank, at::kLong), {})->wait();
    EXPECT_TRUE(output.equal(expected)) << output;
    at::Tensor in_place = at::full({3, 5}, -1, at::kLong);
    in_place[rank].fill_(rank);
    communicator.all_gather(in_place, in_place[rank], {})->wait();
    EXPECT_TRUE(in_place.equal(expected)) << in_place;
  });
}

TEST(GlooCommunicatorTest, ABroadcastCarriesAnyDtypeFromAnyRoot) {
  GlooWorld world(4);
  world.run([](GlooCommunicator& communicator) {
    for (std::int64_t root = 0; root < 4; ++root) {
      for (const auto dtype : {at::kBool, at::kShort, at::kHalf, at::kComplexDouble}) {
        at::Tensor tensor = at::full({7}, communicator.rank() == root ? 1 : 0, dtype);
        communicator.broadcast(tensor, root, {})->wait();
        EXPECT_TRUE(tensor.equal(at::full({7}, 1, dtype))) << tensor;
      }
    }
  });
}

TEST(GlooCommunicatorTest, AWorldOfOneNeedsNoPeers) {
  GlooWorld world(1);
  at::Tensor tensor = filled(3, 5);
  world[0].all_reduce(tensor, ReduceOp::kSum, {})->wait();
  world[0].broadcast(tensor, 0, {})->wait();
  world[0].barrier({})->wait();
  EXPECT_TRUE(tensor.equal(filled(3, 5)));
  at::Tensor output = at::zeros({1, 3});
  world[0].all_gather(output, tensor, {})->wait();
  EXPECT_TRUE(output[0].equal(tensor));
}

TEST(GlooCommunicatorTest, TensorsLiveUntilTheCollectiveEndsThoughNobodyHoldsThem) {
  GlooWorld world(2);
  std::promise<void> dropped;
  world.run([&](GlooCommunicator& communicator) {
    if (communicator.rank() == 0) {
      communicator.all_reduce(filled(1 << 16, 1), ReduceOp::kSum, {});
      dropped.set_value();
      communicator.barrier({})->wait();
    } else {
      dropped.get_future().wait();
      at::Tensor tensor = filled(1 << 16, 2);
      communicator.all_reduce(tensor, ReduceOp::kSum, {})->wait();
      EXPECT_TRUE(tensor.equal(filled(1 << 16, 3)));
      communicator.barrier({})->wait();
    }
  });
}

TEST(GlooCommunicatorTest, SeveralGroupsMeetInOneDirectoryAndShareADevice) {
  const auto directory = RendezvousDirectory::create();
  const auto device = GlooDevice::open();
  rethrow_any(run_threads(2, [&](std::int64_t rank) {
    GlooOptions options;
    options.rank = rank;
    options.world_size = 2;
    options.directory = directory.path();
    options.token = directory.token();
    options.device = device;
    const auto first = make_gloo_communicator(options);
    options.group = "second";
    const auto second = make_gloo_communicator(options);
    at::Tensor a = filled(2, 1), b = filled(2, 10);
    // Launched in opposite order: each communicator has a progress thread of its own.
    auto work_a = rank == 0 ? first->all_reduce(a, ReduceOp::kSum, {}) : nullptr;
    const auto work_b = second->all_reduce(b, ReduceOp::kSum, {});
    if (rank == 1) {
      work_b->wait();
      work_a = first->all_reduce(a, ReduceOp::kSum, {});
    }
    work_a->wait();
    work_b->wait();
    EXPECT_TRUE(a.equal(filled(2, 2)));
    EXPECT_TRUE(b.equal(filled(2, 20)));
  }));
}

TEST(GlooCommunicatorTest, WhatCannotBeCarriedIsRefusedAtLaunch) {
  GlooWorld world(1);
  GlooCommunicator& communicator = world[0];
  const at::Tensor column = at::zeros({3, 4}).select(1, 0);
  EXPECT_THAT(message_of<UsageError>([&] { communicator.all_reduce(column, ReduceOp::kSum, {}); }),
              AllOf(HasSubstr("all_reduce"), HasSubstr("not contiguous"), HasSubstr("[4]")));
  EXPECT_THAT(message_of<UsageError>([&] { communicator.broadcast(column, 0, {}); }),
              HasSubstr("not contiguous"));
  EXPECT_THAT(message_of<UsageError>([&] {
                communicator.all_gather(at::zeros({1, 3}), column, {});
              }),
              HasSubstr("not contiguous"));
  EXPECT_THAT(message_of<UsageError>(
                  [&] { communicator.all_reduce(at::zeros({2}, at::kBool), ReduceOp::kSum, {}); }),
              AllOf(HasSubstr("all_reduce of Bool"), HasSubstr("BFloat16")));
  EXPECT_THAT(message_of<UsageError>([&] { communicator.broadcast(at::zeros({2}), 1, {}); }),
              HasSubstr("from rank 1 of 1"));
  EXPECT_THAT(message_of<UsageError>([&] {
                communicator.all_gather(at::zeros({2, 3}), at::zeros({3}), {});
              }),
              HasSubstr("1 rows"));
  EXPECT_THAT(message_of<UsageError>([&] { communicator.all_reduce({}, ReduceOp::kSum, {}); }),
              HasSubstr("undefined"));
  EXPECT_EQ(communicator.status().posted, 0);
}

TEST(GlooCommunicatorTest, StatusTellsWhatRunsAndWhoIsMissing) {
  GlooWorld world(3);
  std::promise<void> seen;
  world.run([&](GlooCommunicator& communicator) {
    at::Tensor tensor = filled(6, 1);
    if (communicator.rank() == 2) {
      seen.get_future().wait();
      communicator.all_reduce(tensor, ReduceOp::kSum, bucket_tag(4, 1))->wait();
      return;
    }
    const auto work = communicator.all_reduce(tensor, ReduceOp::kSum, bucket_tag(4, 1));
    if (communicator.rank() == 0) {
      const auto status = await_status(communicator, [](const CommunicatorStatus& now) {
        return now.waiting_for == std::vector<std::int64_t>{2};
      });
      EXPECT_EQ(status.posted, 1);
      EXPECT_EQ(status.completed, 0);
      EXPECT_EQ(describe(*status.running), "all_reduce bucket 1 at step 4 (seq 0, 6 Float, sum)");
      EXPECT_EQ(status.failure, std::nullopt);
      seen.set_value();
    }
    work->wait();
    const auto status = communicator.status();
    EXPECT_EQ(status.completed, 1);
    EXPECT_EQ(status.running, std::nullopt) << describe(*status.running);
    EXPECT_THAT(status.waiting_for, IsEmpty());
  });
}

TEST(GlooCommunicatorTest, ATimeoutNamesRankCollectiveAndPeer) {
  GlooWorld world(2, with_timeout(milliseconds(100)));
  at::Tensor tensor = filled(6, 1);
  const auto work = world[0].all_reduce(tensor, ReduceOp::kSum, bucket_tag(3, 1));
  const std::string message = message_of<TimedOut>([&] { work->wait(); });
  EXPECT_EQ(message,
            "rank 0: all_reduce bucket 1 at step 3 (seq 0, 6 Float, sum): timed out after 100 ms: "
            "not entered by rank 1");
  EXPECT_EQ(message_of<TimedOut>([&] { work->wait(); }), message) << "a second wait";
}

TEST(GlooCommunicatorTest, AfterAFailureLaterCollectivesFailAtOnceWithItsCause) {
  GlooWorld world(2, with_timeout(milliseconds(50)));
  const auto first = world[0].barrier({CallSite::kBarrier, 7, -1});
  const auto queued = world[0].all_reduce(filled(2, 1), ReduceOp::kSum, bucket_tag(8, 0));
  const std::string cause = message_of<TimedOut>([&] { first->wait(); });
  EXPECT_THAT(cause, HasSubstr("barrier barrier at step 7"));
  EXPECT_THAT(message_of<TimedOut>([&] { queued->wait(); }),
              AllOf(HasSubstr("all_reduce bucket 0 at step 8"), HasSubstr("was not begun"),
                    HasSubstr(cause)));
  const auto later = world[0].barrier({});
  EXPECT_THAT(message_of<TimedOut>([&] { later->wait(); }), HasSubstr(cause));
  const auto status = world[0].status();
  EXPECT_EQ(status.failure, cause);
  EXPECT_EQ(status.completed, 3);
}

TEST(GlooCommunicatorTest, ARankThatLeavesIsALostPeer) {
  GlooWorld world(3, with_timeout(kForever));
  const auto work = world[0].barrier({});
  world.leave(2);
  EXPECT_THAT(message_of<PeerLost>([&] { work->wait(); }),
              AllOf(HasSubstr("rank 0: barrier"), HasSubstr("lost rank 2"),
                    HasSubstr("not entered by rank 1, 2")));
}

TEST(GlooCommunicatorTest, DestroyingItGivesUpWhatIsInFlightAndTellsThePeers) {
  GlooWorld world(2, with_timeout(kForever));
  const auto running = world[0].all_reduce(filled(2, 1), ReduceOp::kSum, {});
  const auto queued = world[0].barrier({});
  await_status(world[0], [](const CommunicatorStatus& now) { return !now.waiting_for.empty(); });
  world.leave(0);
  EXPECT_THAT(message_of<CommError>([&] { running->wait(); }),
              AllOf(HasSubstr("given up"), HasSubstr("not entered by rank 1")));
  EXPECT_THAT(message_of<CommError>([&] { queued->wait(); }), HasSubstr("was not begun"));
  const auto peer = world[1].barrier({});
  EXPECT_THAT(message_of<PeerLost>([&] { peer->wait(); }), HasSubstr("lost rank 0"));
}

// A leaf of the broadcast is done, and gone, while the others still forward. Were its end taken for
// a loss, they would break off.
TEST(GlooCommunicatorTest, ARankMayLeaveAsSoonAsItsOwnPartIsDone) {
  for (int round = 0; round < 10; ++round) {
    GlooWorld world(4, with_timeout(kForever));
    world.run([&](GlooCommunicator& communicator) {
      const std::int64_t rank = communicator.rank();
      at::Tensor tensor = filled(1 << 20, rank == 0 ? 1 : 0);
      communicator.broadcast(tensor, 0, {})->wait();
      world.leave(rank);
      EXPECT_TRUE(tensor.equal(filled(1 << 20, 1))) << "rank " << rank;
    });
  }
}

struct Disagreement {
  const char* name;
  std::function<std::unique_ptr<Work>(GlooCommunicator&)> by_rank_0, by_rank_1;
  const char* text_0;
  const char* text_1;
};

std::function<std::unique_ptr<Work>(GlooCommunicator&)> reduce(std::int64_t numel,
                                                               at::ScalarType dtype, ReduceOp op,
                                                               CollectiveTag tag) {
  return [=](GlooCommunicator& communicator) {
    return communicator.all_reduce(at::zeros({numel}, dtype), op, tag);
  };
}

TEST(GlooCommunicatorTest, RanksThatDisagreeOnACollectiveAllLearnBothSides) {
  const auto sum4 = reduce(4, at::kFloat, ReduceOp::kSum, bucket_tag(1, 0));
  const auto broadcast_from = [](std::int64_t root) {
    return [root](GlooCommunicator& communicator) {
      return communicator.broadcast(at::zeros({4}), root, {});
    };
  };
  const std::vector<Disagreement> disagreements = {
      {"size", sum4, reduce(400, at::kFloat, ReduceOp::kSum, bucket_tag(1, 0)), "4 Float",
       "400 Float"},
      {"dtype", sum4, reduce(4, at::kInt, ReduceOp::kSum, bucket_tag(1, 0)), "4 Float", "4 Int"},
      {"op", sum4, reduce(4, at::kFloat, ReduceOp::kMax, bucket_tag(1, 0)), "sum", "max"},
      {"tag", sum4, reduce(4, at::kFloat, ReduceOp::kSum, bucket_tag(1, 1)),
       "all_reduce bucket 0 at step 1", "all_reduce bucket 1 at step 1"},
      {"kind", sum4, [](GlooCommunicator& communicator) { return communicator.barrier({}); },
       "all_reduce", "barrier"},
      {"root", broadcast_from(0), broadcast_from(1), "from rank 0", "from rank 1"},
  };
  for (const Disagreement& disagreement : disagreements) {
    GlooWorld world(3, with_timeout(kForever));
    std::vector<std::string> messages(3);
    world.run([&](GlooCommunicator& communicator) {
      const auto& launch =
          communicator.rank() == 1 ? disagreement.by_rank_1 : disagreement.by_rank_0;
      const auto work = launch(communicator);
      messages[static_cast<std::size_t>(communicator.rank())] =
          message_of<Desync>([&] { work->wait(); });
    });
    for (const std::string& message : messages) {
      EXPECT_THAT(message, AllOf(HasSubstr("ranks disagree on collective 0"),
                                 HasSubstr("rank 0 is in "), HasSubstr("rank 1 is in "),
                                 HasSubstr(disagreement.text_0), HasSubstr(disagreement.text_1)))
          << disagreement.name;
    }
  }
}

TEST(GlooCommunicatorTest, WithoutTagChecksEqualShapesMixAsOnARealTransport) {
  GlooOptions options;
  options.check_tags = false;
  GlooWorld world(2, options);
  world.run([](GlooCommunicator& communicator) {
    at::Tensor tensor = filled(4, 1);
    communicator.all_reduce(tensor, ReduceOp::kSum, bucket_tag(0, communicator.rank()))->wait();
    EXPECT_TRUE(tensor.equal(filled(4, 2)));
  });
}

TEST(GlooDeviceTest, ListensOnLoopbackUnlessToldOtherwise) {
  EXPECT_EQ(GlooDevice::open()->address(), "127.0.0.1");
  EXPECT_EQ(GlooDevice::open({"lo", ""})->address(), "127.0.0.1");
}

TEST(GlooDeviceTest, AWrongInterfaceIsRefusedWithTheListOfInterfaces) {
  EXPECT_THAT(message_of<UsageError>([] {
                GlooDevice::open({"nosuchif0", ""});
              }),
              AllOf(HasSubstr("'nosuchif0'"), HasSubstr("lo (127.0.0.1)")));
  EXPECT_THAT(message_of<UsageError>([] {
                GlooDevice::open({"192.0.2.1", ""});
              }),
              HasSubstr("no interface with the address '192.0.2.1'"));
  EXPECT_EQ(GlooDevice::open({"127.0.0.1", ""})->address(), "127.0.0.1");
}

TEST(GlooDeviceTest, AWorldTellsWhereItListens) {
  GlooOptions options;
  options.device = GlooDevice::open({"lo", ""});
  GlooWorld world(2, options);
  EXPECT_THAT(world[1].listens_on(),
              AllOf(HasSubstr("rank 1 on host "), HasSubstr("listens on lo (127.0.0.1)")));
}

// Rank 1 alone was told wrongly; rank 0 does not wait until its time is up.
TEST(GlooDeviceTest, AWrongInterfaceOfOneRankIsToldToTheOthers) {
  const auto directory = RendezvousDirectory::create();
  std::vector<std::string> messages(2);
  run_threads(2, [&](std::int64_t rank) {
    GlooOptions mine = with_timeout(kForever);
    mine.rank = rank;
    mine.world_size = 2;
    mine.directory = directory.path();
    mine.token = directory.token();
    mine.connect_timeout = kForever;
    mine.listen_on.interface = rank == 0 ? "lo" : "nosuchif0";
    messages[static_cast<std::size_t>(rank)] =
        message_of<LaunchError>([&] { make_gloo_communicator(mine); });
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 1: host "), HasSubstr("'nosuchif0'")));
  }
}

TEST(GlooDeviceTest, AHostThatIsNotThisMachineIsRefused) {
  // 192.0.2.0/24 is reserved for documentation, so no machine has it.
  EXPECT_THAT(message_of<UsageError>([] {
                GlooDevice::open({"", "192.0.2.1"});
              }),
              AllOf(HasSubstr("192.0.2.1"), HasSubstr("no address of this machine"),
                    HasSubstr("lo (127.0.0.1)")));
  EXPECT_THAT(message_of<UsageError>([] {
                GlooDevice::open({"lo", "127.0.0.1"});
              }),
              HasSubstr("choose one"));
}

}  // namespace
}  // namespace lockstep::test
