// SPDX-License-Identifier: Apache-2.0
// What a wrapper says about itself, and when it looks.
#include "core/ddp_logging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "core/comm_hooks.h"
#include "core/error.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DdpLoggingTest, KnowsTheFactsFromConstructionOn) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    struct MixedImpl : torch::nn::Module {
      MixedImpl() {
        register_parameter("a", torch::ones({2}));
        register_parameter("b", torch::ones({3}, at::kDouble));
      }
      at::Tensor forward() { return at::zeros({}); }
    };
    DdpOptions options;
    options.bucket_cap_bytes = 5;
    options.gradient_as_bucket_view = true;
    DistributedDataParallel<MixedImpl> ddp(std::make_shared<MixedImpl>(), communicator, options);
    ddp.register_comm_hook(noop_hook(), "noop");
    return ddp.logging_data();
  });
  const DdpLoggingData& data = results[1];
  EXPECT_THAT(data.module_name, HasSubstr("MixedImpl"));
  EXPECT_EQ(data.rank, 1);
  EXPECT_EQ(data.world_size, 2);
  EXPECT_EQ(data.num_parameter_tensors, 2);
  EXPECT_EQ(data.total_parameter_bytes, 2 * 4 + 3 * 8);
  EXPECT_EQ(data.dtypes, "Double, Float");
  EXPECT_EQ(data.device, "cpu");
  EXPECT_THAT(data.bucket_bytes, ElementsAre(24, 8));
  EXPECT_EQ(data.bucket_cap_bytes, 5);
  EXPECT_TRUE(data.broadcast_buffers);
  EXPECT_TRUE(data.gradient_as_bucket_view);
  EXPECT_FALSE(data.static_graph);
  EXPECT_EQ(data.comm_hook, "noop");
  EXPECT_EQ(data.iteration, 0);
  EXPECT_FALSE(data.has_error);
}

// 20 iterations at rate 2 end with 18, since 20 would be sampled by the 21st (Q1).
TEST(DdpLoggingTest, SamplesTheFirstTenIterationsAndThenEveryNthAtTheNextForward) {
  const auto results = run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    DdpOptions options = one_parameter_per_bucket();
    options.logging_sample_rate = 4;
    BankDdp ddp(bank.ptr(), communicator, options);
    std::vector<std::int64_t> iterations;
    for (int step = 0; step < 20; ++step) {
      ddp.no_sync([&] { train_once(ddp, all_terms(2)); });  // counts for nothing
      train_once(ddp, all_terms(2));
      iterations.push_back(ddp.logging_data().iteration);
    }
    const DdpLoggingData data = ddp.logging_data();
    EXPECT_TRUE(data.has_rebuilt_buckets);
    EXPECT_THAT(data.rebuilt_buckets, ElementsAre(ElementsAre(1), ElementsAre(0)));
    EXPECT_THAT(data.rebuilt_bucket_bytes, ElementsAre(4, 4));
    EXPECT_THAT(data.grad_ready_order, ElementsAre(1, 0));
    return iterations;
  });
  EXPECT_THAT(results[0],
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 12, 12, 12, 12, 16, 16, 16, 16));
  EXPECT_TRUE(is_sampled(10, 100));
  EXPECT_FALSE(is_sampled(11, 100));
  EXPECT_FALSE(is_sampled(0, 1));
}

// Unused in the four iterations: p1, p1, nothing, p0 and p1.
TEST(DdpLoggingTest, CountsUnusedBytesOfOneIterationAndSeesThemChange) {
  const auto results = run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank(std::vector<std::vector<std::int64_t>>{{1}, {2}});
    DdpOptions options;
    options.find_unused_parameters = true;
    BankDdp ddp(bank.ptr(), communicator, options);
    std::vector<std::int64_t> seen;
    for (const auto& terms :
         std::vector<std::vector<Term>>{{{0}}, {{0}}, all_terms(2), {}, all_terms(2)}) {
      train_once(ddp, terms);
      seen.push_back(ddp.logging_data().unused_parameter_bytes);
      seen.push_back(ddp.logging_data().can_set_static_graph ? 1 : 0);
    }
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre(0, 0, 8, 1, 8, 1, 0, 0, 12, 0));
}

TEST(DdpLoggingTest, KeepsTheLastError) {
  const auto results = run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator);
    train_once(ddp, all_terms(2));
    train_once(ddp, {{0}});
    EXPECT_THROW(ddp(all_terms(2)), DdpError);
    return ddp.logging_data();
  });
  EXPECT_TRUE(results[0].has_error);
  EXPECT_THAT(results[0].error, HasSubstr("p1 (index 1)"));
  EXPECT_EQ(results[0].error_iteration, 2);
}

}  // namespace
}  // namespace lockstep::test
