// SPDX-License-Identifier: Apache-2.0
// How NCCL ranks fail: time limits, errors that NCCL reports, launches that are refused, ranks that
// do not come, communicators that are destroyed early. GPUs and NCCL are stand-ins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>

#include "core/error.h"
#include "core/nccl_communicator.h"
#include "tests/contract/fake_gpu.h"
#include "tests/contract/nccl_world.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr milliseconds kForever{600'000};
// Long enough for whatever is not meant to time out; also how long an idle rank waits, when it is
// destroyed, for one that was aborted.
constexpr milliseconds kLong{3'000};

CollectiveTag bucket_tag(std::int64_t step, std::int64_t bucket) {
  return {CallSite::kBucket, step, bucket};
}

at::Tensor ones(std::int64_t numel) { return at::ones({numel}); }

NcclOptions over(FakeGpu& gpu, milliseconds timeout = kForever) {
  NcclOptions options;
  options.api = &gpu.api;
  options.timeout = timeout;
  return options;
}

/// Runs `body` on rank 0 of two, while rank 1 issues nothing.
void run_alone(const NcclOptions& options, const std::function<void(NcclCommunicator&)>& body) {
  std::promise<void> has_come, is_done;
  auto done = is_done.get_future();
  run_nccl(2, options, [&](NcclCommunicator& communicator) {
    if (communicator.rank() == 1) {
      has_come.set_value();
      done.wait();
      return;
    }
    has_come.get_future().wait();
    const std::shared_ptr<void> end(nullptr, [&](void*) { is_done.set_value(); });
    body(communicator);
  });
}

TEST(NcclFailureTest, ATimeoutNamesRankCollectiveAndStepAndAborts) {
  FakeGpu gpu(2);
  run_alone(over(gpu, milliseconds(100)), [&](NcclCommunicator& communicator) {
    const auto work = communicator.all_reduce(ones(6), ReduceOp::kSum, bucket_tag(3, 1));
    const std::string message = message_of<TimedOut>([&] { work->wait(); });
    EXPECT_EQ(message,
              "rank 0: all_reduce bucket 1 at step 3 (seq 0, 6 Float, sum): timed out after 100 "
              "ms: some rank has not entered it, or does not answer");
    EXPECT_EQ(message_of<TimedOut>([&] { work->wait(); }), message) << "a second wait";
  });
  EXPECT_EQ(gpu.num_aborted() + gpu.num_destroyed(), 2);
  EXPECT_GE(gpu.num_aborted(), 1);
  EXPECT_EQ(gpu.num_misused(), 0);
}

TEST(NcclFailureTest, ATimeoutTellsWhereTheGpuHasNotComeToTheCollective) {
  FakeGpu gpu(1);
  NcclOptions options = over(gpu, milliseconds(50));
  options.wait_on_host = true;
  run_nccl(1, options, [&](NcclCommunicator& communicator) {
    gpu.occupy(0);
    const auto work =
        communicator.all_reduce(FakeGpu::on_gpu(ones(6), 0), ReduceOp::kSum, bucket_tag(0, 0));
    EXPECT_THAT(message_of<TimedOut>([&] { work->wait(); }),
                HasSubstr("it has not begun, since kernels launched before it still run"));
    gpu.release(0);
  });
}

TEST(NcclFailureTest, AnAbortLetsTheCallersStreamGoOn) {
  FakeGpu gpu(2);
  run_alone(over(gpu, milliseconds(50)), [&](NcclCommunicator& communicator) {
    const auto work =
        communicator.all_reduce(FakeGpu::on_gpu(ones(6), 0), ReduceOp::kSum, bucket_tag(0, 0));
    work->wait();  // on the GPU only: nothing is known yet
    gpu.note(0, "copy-out");
    const auto barrier = communicator.barrier({});
    EXPECT_THAT(message_of<TimedOut>([&] { barrier->wait(); }), HasSubstr("bucket 0 at step 0"));
    while (gpu.ran().empty()) {
      std::this_thread::yield();
    }
    EXPECT_THAT(gpu.ran(), ::testing::ElementsAre("copy-out"));
    EXPECT_THAT(message_of<TimedOut>([&] { work->wait(); }), HasSubstr("timed out"));
  });
}

TEST(NcclFailureTest, AfterAFailureLaterCollectivesFailAtOnceWithItsCause) {
  FakeGpu gpu(2);
  run_alone(over(gpu, milliseconds(50)), [](NcclCommunicator& communicator) {
    const auto first = communicator.barrier({CallSite::kBarrier, 7, -1});
    const auto second = communicator.all_reduce(ones(2), ReduceOp::kSum, bucket_tag(8, 0));
    const std::string cause = message_of<TimedOut>([&] { first->wait(); });
    EXPECT_THAT(cause, HasSubstr("barrier barrier at step 7"));
    EXPECT_THAT(message_of<TimedOut>([&] { second->wait(); }),
                AllOf(HasSubstr("all_reduce bucket 0 at step 8"), HasSubstr("was given up"),
                      HasSubstr(cause)));
    const auto later = communicator.barrier({});
    EXPECT_THAT(message_of<TimedOut>([&] { later->wait(); }),
                AllOf(HasSubstr("was not begun"), HasSubstr(cause)));
  });
}

TEST(NcclFailureTest, WhatNcclReportsOfAPeerIsALostPeerAndAborts) {
  FakeGpu gpu(2);
  run_alone(over(gpu), [&](NcclCommunicator& communicator) {
    const auto work = communicator.all_reduce(ones(2), ReduceOp::kSum, bucket_tag(5, 0));
    gpu.report_error(kNcclRemoteError);
    EXPECT_THAT(message_of<PeerLost>([&] { work->wait(); }),
                AllOf(HasSubstr("rank 0: all_reduce bucket 0 at step 5"),
                      HasSubstr("text of NCCL error 6")));
  });
  EXPECT_GE(gpu.num_aborted(), 1);
  EXPECT_EQ(gpu.num_misused(), 0);
}

TEST(NcclFailureTest, ALaunchThatNcclRefusesFailsItsWait) {
  FakeGpu gpu(1);
  gpu.api.broadcast = [](auto&&...) { return 4; };
  run_nccl(1, over(gpu), [](NcclCommunicator& communicator) {
    const auto work = communicator.broadcast(ones(2), 0, {});
    EXPECT_THAT(message_of<CommError>([&] { work->wait(); }),
                AllOf(HasSubstr("broadcast"), HasSubstr("text of NCCL error 4")));
  });
  EXPECT_EQ(gpu.pinned_bytes(), 0U);
}

TEST(NcclFailureTest, ALaunchThatNcclNeverFinishesTimesOut) {
  FakeGpu gpu(1);
  std::atomic<bool> stuck{false};
  gpu.api.async_error = [&stuck, real = gpu.api.async_error](NcclComm comm, int* error) {
    const int status = real(comm, error);
    *error = stuck ? kNcclInProgress : *error;
    return status;
  };
  run_nccl(1, over(gpu, milliseconds(50)), [&](NcclCommunicator& communicator) {
    stuck = true;
    const auto work = communicator.barrier({});
    EXPECT_THAT(message_of<TimedOut>([&] { work->wait(); }), HasSubstr("did not launch it"));
    stuck = false;
  });
}

TEST(NcclFailureTest, AnErrorOfTheGpuFailsWhatIsInFlight) {
  FakeGpu gpu(2);
  std::atomic<bool> broken{false};
  gpu.api.query_event = [&broken, real = gpu.api.query_event](CudaEvent event) {
    return broken ? 700 : real(event);
  };
  run_alone(over(gpu, kLong), [&](NcclCommunicator& communicator) {
    const auto work = communicator.all_reduce(ones(2), ReduceOp::kSum, {});
    broken = true;
    EXPECT_THAT(message_of<CommError>([&] { work->wait(); }),
                HasSubstr("CUDA error 700: text of CUDA error 700"));
    broken = false;
  });
}

TEST(NcclFailureTest, DestroyingItGivesUpWhatIsInFlight) {
  FakeGpu gpu(2);
  const RendezvousDirectory directory = RendezvousDirectory::create();
  NcclOptions options = over(gpu, kLong);
  options.world_size = 2;
  options.directory = directory.path();
  options.token = directory.token();
  std::vector<std::unique_ptr<NcclCommunicator>> ranks(2);
  rethrow_any(run_threads(2, [&](std::int64_t rank) {
    NcclOptions mine = options;
    mine.rank = rank;
    ranks[static_cast<std::size_t>(rank)] = make_nccl_communicator(mine);
  }));
  at::Tensor tensor = ones(3);
  const auto work = ranks[0]->all_reduce(tensor, ReduceOp::kSum, bucket_tag(1, 0));
  auto waits =
      std::async(std::launch::async, [&] { return message_of<CommError>([&] { work->wait(); }); });
  ranks[0].reset();
  EXPECT_THAT(waits.get(), AllOf(HasSubstr("all_reduce bucket 0 at step 1"),
                                 HasSubstr("given up: the communicator is being destroyed")));
  EXPECT_EQ(gpu.num_aborted(), 1);
  EXPECT_EQ(tensor.use_count(), 1) << "the tensor was let go";
  EXPECT_TRUE(tensor.equal(ones(3))) << "and left alone";
  ranks[1].reset();
  EXPECT_EQ(gpu.num_misused(), 0);
  EXPECT_EQ(gpu.pinned_bytes(), 0U);
}

TEST(NcclFailureTest, RanksThatNcclDoesNotConnectInTimeAreToldSo) {
  FakeGpu gpu(1);
  gpu.api.async_error = [](NcclComm, int* error) {
    *error = kNcclInProgress;
    return kGpuSuccess;
  };
  NcclOptions options = over(gpu);
  options.connect_timeout = milliseconds(50);
  EXPECT_THAT(message_of<TimedOut>([&] { run_nccl(1, options, [](NcclCommunicator&) {}); }),
              HasSubstr("rank 0: NCCL did not connect all 1 ranks within 50 ms"));
  EXPECT_EQ(gpu.num_aborted(), 1);
}

TEST(NcclFailureTest, AnErrorWhileConnectingNamesItAndTheWayToLearnMore) {
  FakeGpu gpu(1);
  gpu.api.init_rank = [](auto&&...) { return 3; };
  EXPECT_THAT(
      message_of<CommError>([&] { run_nccl(1, over(gpu), [](NcclCommunicator&) {}); }),
      AllOf(HasSubstr("rank 0"), HasSubstr("text of NCCL error 3"), HasSubstr("NCCL_DEBUG=WARN")));
}

TEST(NcclFailureTest, WithoutDriverOrDeviceTheErrorSaysSoAndWhatToDo) {
  FakeGpu gpu(0);
  const auto connect = [&] { run_nccl(1, over(gpu), [](NcclCommunicator&) {}); };
  EXPECT_THAT(message_of<UsageError>(connect),
              AllOf(HasSubstr("CUDA sees none"), HasSubstr("CUDA_VISIBLE_DEVICES"),
                    HasSubstr("choose another backend")));
  gpu.api.device_count = [](int*) { return 35; };
  EXPECT_THAT(message_of<UsageError>(connect),
              AllOf(HasSubstr("needs an NVIDIA driver"), HasSubstr("text of CUDA error 35")));
  gpu.api.device_count = [](int*) { return 100; };
  EXPECT_THAT(message_of<UsageError>(connect), HasSubstr("CUDA sees none"));
  gpu.api.device_count = [](int*) { return 2; };
  EXPECT_THAT(message_of<UsageError>(connect), HasSubstr("text of CUDA error 2 (error 2)"));
}

}  // namespace
}  // namespace lockstep::test
