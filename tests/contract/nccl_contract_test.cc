// SPDX-License-Identifier: Apache-2.0
// The NCCL communicator under the common contract: over GPUs, where there are enough of them, and
// over a stand-in everywhere.
#include <gtest/gtest.h>

#include "core/nccl_api.h"
#include "tests/contract/communicator_contract.h"
#include "tests/contract/fake_gpu.h"
#include "tests/contract/nccl_world.h"

namespace lockstep::test {
namespace {

CommunicatorFactory over_fake() {
  return {"NcclFake", [](std::int64_t world_size, const std::function<void(Communicator&)>& body) {
            FakeGpu gpu(static_cast<int>(world_size));
            NcclOptions options;
            options.api = &gpu.api;
            run_nccl(world_size, options, body);
            EXPECT_EQ(gpu.num_misused(), 0);
            EXPECT_EQ(gpu.num_destroyed(), world_size);
            EXPECT_EQ(gpu.pinned_bytes(), 0U);
          }};
}

std::string why_not(std::int64_t world_size) {
  const std::string reason = why_no_nccl();
  if (!reason.empty()) {
    return reason;
  }
  const int ranks = nccl_ranks_max(nccl_api());
  return world_size <= ranks ? "" : "the GPUs here carry " + std::to_string(ranks) + " ranks";
}

CommunicatorFactory over_gpus() {
  return {"Nccl",
          [](std::int64_t world_size, const std::function<void(Communicator&)>& body) {
            run_nccl(world_size, {}, body);
          },
          why_not};
}

INSTANTIATE_TEST_SUITE_P(NcclFake, CommunicatorContract, contract_params(over_fake()),
                         contract_name);
INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorContract, contract_params(over_gpus()), contract_name);

}  // namespace
}  // namespace lockstep::test
