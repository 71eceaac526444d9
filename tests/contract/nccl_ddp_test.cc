// SPDX-License-Identifier: Apache-2.0
// The DDP over the NCCL transport: gradients are averaged in time, checked mode and uneven inputs
// work. GPUs and NCCL are stand-ins; the model lives in host memory.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <vector>

#include "core/checked_communicator.h"
#include "core/distributed_data_parallel.h"
#include "core/error.h"
#include "tests/contract/fake_gpu.h"
#include "tests/contract/nccl_world.h"

namespace lockstep::test {
namespace {

using torch::nn::LinearImpl;

std::shared_ptr<LinearImpl> ones_model() {
  auto model = std::make_shared<LinearImpl>(4, 2);
  const at::NoGradGuard no_grad;
  model->weight.fill_(1);
  model->bias.fill_(1);
  return model;
}

NcclOptions over(FakeGpu& gpu) {
  NcclOptions options;
  options.api = &gpu.api;
  return options;
}

class NcclDdpTest : public ::testing::Test {
 protected:
  // LibTorch makes its random numbers' generator at the first use. Made here, it is none for thread
  // sanitizers, which do not see LibTorch's own locks, to take for a race between ranks.
  static void SetUpTestSuite() { at::rand({1}); }
};

TEST_F(NcclDdpTest, GradientsAreTheMeanOverRanksInEveryStep) {
  FakeGpu gpu(4);
  std::vector<std::vector<at::Tensor>> gradients(4);
  run_nccl(4, over(gpu), [&](NcclCommunicator& communicator) {
    DdpOptions options;
    options.bucket_cap_bytes = 8;  // weight and bias apart
    DistributedDataParallel<LinearImpl> ddp(ones_model(), communicator, options);
    for (int step = 0; step < 3; ++step) {
      ddp.module().zero_grad();
      ddp.forward(at::full({1, 4}, static_cast<double>(communicator.rank()))).sum().backward();
      gradients[static_cast<std::size_t>(communicator.rank())].push_back(
          ddp.module().weight.grad().clone());
    }
  });
  for (const auto& of_rank : gradients) {
    for (const at::Tensor& gradient : of_rank) {
      // The gradient of a rank's weights is its input: (0 + 1 + 2 + 3) / 4.
      EXPECT_TRUE(gradient.equal(at::full({2, 4}, 1.5))) << gradient;
    }
  }
}

TEST_F(NcclDdpTest, UnevenInputsEndWithJoin) {
  FakeGpu gpu(2);
  std::vector<at::Tensor> gradients(2);
  run_nccl(2, over(gpu), [&](NcclCommunicator& communicator) {
    DistributedDataParallel<LinearImpl> ddp(ones_model(), communicator);
    ddp.join([&] {
      for (std::int64_t i = 0; i <= communicator.rank(); ++i) {
        ddp.module().zero_grad();
        ddp.forward(at::full({1, 4}, 2.0)).sum().backward();
      }
    });
    gradients[static_cast<std::size_t>(communicator.rank())] = ddp.module().weight.grad();
  });
  // Rank 1's second step: (0 + 2) / 2, the joined rank having contributed zeros.
  EXPECT_TRUE(gradients[1].equal(at::full({2, 4}, 1.0))) << gradients[1];
}

TEST_F(NcclDdpTest, ACheckedCommunicatorNamesAWrongPairing) {
  FakeGpu gpu(2);
  std::vector<std::string> messages(2);
  run_nccl(2, over(gpu), [&](NcclCommunicator& communicator) {
    CheckedCommunicator checked(communicator);
    const auto work = checked.all_reduce(at::ones({2 + communicator.rank()}), ReduceOp::kSum, {});
    messages[static_cast<std::size_t>(communicator.rank())] =
        message_of<Desync>([&] { work->wait(); });
  });
  for (const std::string& message : messages) {
    EXPECT_NE(message.find("but rank 1 is in all_reduce"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace lockstep::test
