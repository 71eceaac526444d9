// SPDX-License-Identifier: Apache-2.0
// What the NCCL transport promises beyond the contract of every transport: order on the GPU without
// halting the host, groups, refusals. GPUs and NCCL are stand-ins.
#include "core/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/sparse_all_reduce.h"
#include "tests/contract/fake_gpu.h"
#include "tests/contract/nccl_world.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CollectiveTag bucket_tag(std::int64_t step, std::int64_t bucket) {
  return {CallSite::kBucket, step, bucket};
}

at::Tensor filled(std::int64_t numel, double value) { return at::full({numel}, value); }

NcclOptions over(FakeGpu& gpu, milliseconds timeout = milliseconds(600'000)) {
  NcclOptions options;
  options.api = &gpu.api;
  options.timeout = timeout;
  return options;
}

TEST(NcclCommunicatorTest, ALaunchAndItsWaitOnlyPutEventsIntoStreams) {
  FakeGpu gpu(1);
  run_nccl(1, over(gpu), [&](NcclCommunicator& communicator) {
    const at::Tensor bucket = FakeGpu::on_gpu(filled(6, 1), 0);
    gpu.occupy(0);  // so that it has not ended before its wait
    communicator.all_reduce(bucket, ReduceOp::kSum, bucket_tag(0, 0))->wait();
    gpu.release(0);
    // e0 is the communicator's own, e1 and e2 bracket the collective.
    EXPECT_THAT(gpu.calls(), ElementsAre("record e0 in caller", "side waits for e0",
                                         "record e1 in side", "group {", "all_reduce of 6",
                                         "} group", "record e2 in side", "caller waits for e2"));
  });
}

TEST(NcclCommunicatorTest, ACollectiveRunsAfterTheKernelsBeforeItAndBeforeThoseAfterItsWait) {
  FakeGpu gpu(1);
  run_nccl(1, over(gpu), [&](NcclCommunicator& communicator) {
    const at::Tensor bucket = FakeGpu::on_gpu(filled(6, 1), 0);
    gpu.occupy(0);
    gpu.note(0, "gradient kernel");
    const auto work = communicator.all_reduce(bucket, ReduceOp::kSum, bucket_tag(0, 0));
    gpu.note(0, "next gradient kernel");
    work->wait();  // returns though the GPU has not even begun
    gpu.note(0, "optimizer kernel");
    EXPECT_THAT(gpu.ran(), IsEmpty());
    gpu.release(0);
    const std::vector<std::string> ran = gpu.ran();
    const auto at = [&](const std::string& what) {
      return std::find(ran.begin(), ran.end(), what) - ran.begin();
    };
    ASSERT_EQ(ran.size(), 4U);
    EXPECT_LT(at("gradient kernel"), at("all_reduce"));
    EXPECT_LT(at("all_reduce"), at("optimizer kernel"));
  });
}

TEST(NcclCommunicatorTest, GradientKernelsGoOnWhileAnotherRankKeepsACollectiveWaiting) {
  FakeGpu gpu(2);
  std::promise<void> seen;
  run_nccl(2, over(gpu), [&](NcclCommunicator& communicator) {
    const at::Tensor bucket = FakeGpu::on_gpu(filled(4, 1), communicator.device());
    if (communicator.rank() == 1) {
      seen.get_future().wait();
    }
    const auto work = communicator.all_reduce(bucket, ReduceOp::kSum, bucket_tag(0, 0));
    if (communicator.rank() == 0) {
      gpu.note(0, "next gradient kernel");
      EXPECT_THAT(gpu.ran(), ElementsAre("next gradient kernel"));
      work->wait();
      gpu.note(0, "copy-out");
      EXPECT_THAT(gpu.ran(), ElementsAre("next gradient kernel"));
      seen.set_value();
    }
    work->wait();
    communicator.barrier({})->wait();
    EXPECT_EQ(static_cast<const float*>(bucket.data_ptr())[3], 2);
  });
  EXPECT_THAT(gpu.ran(), ::testing::Contains("copy-out"));
}

TEST(NcclCommunicatorTest, WithWaitOnHostTheHostWaitsForTensorsOnTheGpuToo) {
  FakeGpu gpu(1);
  NcclOptions options = over(gpu);
  options.wait_on_host = true;
  run_nccl(1, options, [&](NcclCommunicator& communicator) {
    const at::Tensor bucket = FakeGpu::on_gpu(filled(6, 1), 0);
    gpu.occupy(0);
    const auto work = communicator.all_reduce(bucket, ReduceOp::kSum, bucket_tag(0, 0));
    auto waits = std::async(std::launch::async, [&] {
      work->wait();
      return gpu.ran();
    });
    gpu.release(0);
    EXPECT_THAT(waits.get(), ElementsAre("all_reduce"));
  });
}

TEST(NcclCommunicatorTest, AGroupIsOneLaunchBetweenOnePairOfEvents) {
  FakeGpu gpu(2);
  std::vector<at::Tensor> sums(2), rows(2);
  run_nccl(2, over(gpu), [&](NcclCommunicator& communicator) {
    const auto rank = static_cast<std::size_t>(communicator.rank());
    sums[rank] = filled(3, 1);
    rows[rank] = at::zeros({2, 2});
    std::unique_ptr<Work> first, second;
    communicator.grouped([&] {
      first = communicator.all_reduce(FakeGpu::on_gpu(sums[rank], communicator.device()),
                                      ReduceOp::kSum, bucket_tag(0, 0));
      second = communicator.all_gather(
          FakeGpu::on_gpu(rows[rank], communicator.device()),
          FakeGpu::on_gpu(filled(2, static_cast<double>(rank)), communicator.device()), {});
      EXPECT_THAT(message_of<UsageError>([&] { first->wait(); }), HasSubstr("within its group"));
    });
    first->wait();
    second->wait();
    communicator.barrier({})->wait();
  });
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(sums[rank].equal(filled(3, 2)));
    EXPECT_TRUE(rows[rank].equal(at::stack({filled(2, 0), filled(2, 1)})));
  }
  const std::vector<std::string> calls = gpu.calls();
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "group {"), 4) << "a group and a barrier each";
}

TEST(NcclCommunicatorTest, AGroupThatBreaksOffIsLaunchedAsFarAsItGot) {
  FakeGpu gpu(1);
  run_nccl(1, over(gpu), [&](NcclCommunicator& communicator) {
    std::unique_ptr<Work> work;
    EXPECT_THAT(message_of<UsageError>([&] {
                  communicator.grouped([&] {
                    work = communicator.barrier({});
                    communicator.broadcast(filled(1, 1), 7, {});
                  });
                }),
                HasSubstr("from rank 7"));
    work->wait();
    EXPECT_THAT(
        message_of<UsageError>([&] { communicator.grouped([&] { communicator.grouped([] {}); }); }),
        HasSubstr("a group within a group"));
  });
}

TEST(NcclCommunicatorTest, DtypesMapToNcclsNumbers) {
  const auto number = [](at::ScalarType dtype) {
    const auto numbers = nccl_numbers(dtype);
    return numbers ? 10 * static_cast<int>(numbers->type) + static_cast<int>(numbers->per_element)
                   : -1;
  };
  // NCCL: 0 int8, 1 uint8, 2 int32, 4 int64, 6 to 8 float16 to float64, 9 bfloat16.
  EXPECT_EQ(number(at::kChar), 1);
  EXPECT_EQ(number(at::kByte), 11);
  EXPECT_EQ(number(at::kInt), 21);
  EXPECT_EQ(number(at::kLong), 41);
  EXPECT_EQ(number(at::kHalf), 61);
  EXPECT_EQ(number(at::kFloat), 71);
  EXPECT_EQ(number(at::kDouble), 81);
  EXPECT_EQ(number(at::kBFloat16), 91);
  EXPECT_EQ(number(at::kComplexHalf), 62);
  EXPECT_EQ(number(at::kComplexFloat), 72);
  EXPECT_EQ(number(at::kComplexDouble), 82);
  EXPECT_EQ(number(at::kBool), -1);
  EXPECT_EQ(number(at::kShort), -1);
}

TEST(NcclCommunicatorTest, ComplexNumbersAreSummedAsPairs) {
  FakeGpu gpu(2);
  run_nccl(2, over(gpu), [](NcclCommunicator& communicator) {
    for (const auto dtype : {at::kComplexFloat, at::kComplexDouble}) {
      const c10::complex<double> own(1 + static_cast<double>(communicator.rank()), -3);
      at::Tensor tensor = at::full({5}, own, dtype);
      communicator.all_reduce(tensor, ReduceOp::kSum, {})->wait();
      EXPECT_TRUE(tensor.equal(at::full({5}, c10::complex<double>(3, -6), dtype))) << tensor;
    }
  });
}

TEST(NcclCommunicatorTest, SparseGradientsAreSummedByGatheringRows) {
  FakeGpu gpu(2);
  run_nccl(2, over(gpu), [](NcclCommunicator& communicator) {
    // Row 1 on both ranks, row 3 on rank 1 only.
    const at::Tensor rows =
        communicator.rank() == 0 ? at::tensor({1}, at::kLong) : at::tensor({1, 3}, at::kLong);
    const at::Tensor gradient =
        at::sparse_coo_tensor(rows.unsqueeze(0), at::ones({rows.numel(), 2}), {4, 2}).coalesce();
    const at::Tensor sum = sparse_all_reduce(communicator, gradient, {}).wait().to_dense();
    const at::Tensor expected = at::zeros({4, 2});
    expected[1].fill_(2);
    expected[3].fill_(1);
    EXPECT_TRUE(sum.equal(expected)) << sum;
  });
}

TEST(NcclCommunicatorTest, WhatCannotBeCarriedIsRefusedAtLaunch) {
  FakeGpu gpu(1);
  run_nccl(1, over(gpu), [&](NcclCommunicator& communicator) {
    EXPECT_THAT(message_of<UsageError>([&] {
                  communicator.all_reduce(at::zeros({2}, at::kBool), ReduceOp::kSum, {});
                }),
                AllOf(HasSubstr("all_reduce of Bool"), HasSubstr("NCCL reduces Float")));
    EXPECT_THAT(message_of<UsageError>([&] {
                  communicator.all_reduce(at::zeros({2}, at::kComplexFloat), ReduceOp::kMax, {});
                }),
                HasSubstr("complex numbers have no order"));
    EXPECT_THAT(message_of<UsageError>([&] {
                  communicator.all_reduce(FakeGpu::on_gpu(filled(2, 1), 1), ReduceOp::kSum, {});
                }),
                AllOf(HasSubstr("cuda:1"), HasSubstr("rank 0 has its communicator on cuda:0")));
    EXPECT_THAT(message_of<UsageError>([&] {
                  communicator.all_gather(at::zeros({1, 2}), FakeGpu::on_gpu(filled(2, 1), 0), {});
                }),
                HasSubstr("both must be in one place"));
    EXPECT_THAT(message_of<UsageError>([&] {
                  communicator.all_reduce(at::zeros({2, 2}).to_sparse(), ReduceOp::kSum, {});
                }),
                HasSubstr("Sparse"));
    EXPECT_THAT(message_of<UsageError>([&] { communicator.all_reduce({}, ReduceOp::kSum, {}); }),
                HasSubstr("undefined"));
    EXPECT_THAT(gpu.calls(), IsEmpty());
  });
}

TEST(NcclCommunicatorTest, HostMemoryThatACollectiveWillWriteIsRefusedUntilItHasEnded) {
  FakeGpu gpu(2);
  std::promise<void> refused;
  run_nccl(2, over(gpu), [&](NcclCommunicator& communicator) {
    if (communicator.rank() == 1) {
      refused.get_future().wait();
    }
    const at::Tensor tensor = filled(6, 1);
    const auto work = communicator.all_reduce(tensor, ReduceOp::kSum, bucket_tag(2, 0));
    if (communicator.rank() == 0) {
      EXPECT_THAT(
          message_of<UsageError>([&] { communicator.broadcast(tensor.narrow(0, 5, 1), 0, {}); }),
          AllOf(HasSubstr("all_reduce bucket 0 at step 2"), HasSubstr("wait for that")));
      refused.set_value();
    }
    work->wait();
    communicator.all_reduce(tensor, ReduceOp::kSum, bucket_tag(2, 1))->wait();
    EXPECT_TRUE(tensor.equal(filled(6, 4)));
  });
}

TEST(NcclCommunicatorTest, TellsWhenCollectivesBeganAndEnded) {
  FakeGpu gpu(1);
  std::vector<std::string> told;
  NcclOptions options = over(gpu);
  options.on_ended = [&](const CollectiveDescription& what, CudaEvent begun, CudaEvent ended) {
    EXPECT_NE(begun, ended);
    told.push_back(describe(what));
  };
  run_nccl(1, options, [](NcclCommunicator& communicator) {
    communicator.all_reduce(filled(6, 1), ReduceOp::kSum, bucket_tag(0, 0))->wait();
    communicator.barrier({})->wait();
  });
  EXPECT_THAT(told, ElementsAre("all_reduce bucket 0 at step 0 (seq 0, 6 Float, sum)",
                                "barrier script (seq 1)"));
}

TEST(NcclCommunicatorTest, RanksTakeDevicesInTurnUnlessTold) {
  FakeGpu gpu(2);
  std::vector<int> devices(2);
  run_nccl(2, over(gpu), [&](NcclCommunicator& communicator) {
    devices[static_cast<std::size_t>(communicator.rank())] = communicator.device();
  });
  EXPECT_THAT(devices, ElementsAre(0, 1));
  NcclOptions options = over(gpu);
  options.device = 1;
  run_nccl(1, options, [](NcclCommunicator& communicator) { EXPECT_EQ(communicator.device(), 1); });
  options.device = 2;
  EXPECT_THAT(message_of<UsageError>([&] { run_nccl(1, options, [](NcclCommunicator&) {}); }),
              AllOf(HasSubstr("no device 2"), HasSubstr("devices 0 to 1")));
}

TEST(NcclCommunicatorTest, RanksThatShareAGpuAreRefusedWhereNcclCannot) {
  FakeGpu gpu(1);
  EXPECT_THAT(message_of<UsageError>([&] { run_nccl(2, over(gpu), [](NcclCommunicator&) {}); }),
              AllOf(HasSubstr("ranks 0, 1 share one GPU"), HasSubstr("NCCL 2.28.9 cannot"),
                    HasSubstr("at most 1 ranks"), HasSubstr("install NCCL 2.30")));
  gpu.installed_version = nccl_version(2, 30, 3);
  EXPECT_THAT(message_of<UsageError>([&] { run_nccl(2, over(gpu), [](NcclCommunicator&) {}); }),
              HasSubstr("or set NCCL_MULTI_RANK_GPU_ENABLE=1"));
  ASSERT_EQ(::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1), 0);
  EXPECT_EQ(message_of<UsageError>([&] {
              run_nccl(2, over(gpu), [](NcclCommunicator& c) { c.barrier({})->wait(); });
            }),
            kNoError);
  ::unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

}  // namespace
}  // namespace lockstep::test
