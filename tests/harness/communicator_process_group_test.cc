// SPDX-License-Identifier: Apache-2.0
// c10d's collectives through a communicator.
#include "harness/sync/communicator_process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "core/error.h"
#include "tests/support/run_ranks.h"

namespace lockstep::harness {
namespace {

using test::LocalCommunicator;
using test::run_ranks;
using test::try_run_ranks;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr std::int64_t kRanks = 3;

class PlantedWork final : public lockstep::Work {
 public:
  void wait() override { throw TimedOut("planted"); }
};

CommunicatorProcessGroup group_of(Communicator& communicator) {
  return {communicator,
          {[](CollectiveKind) { return CollectiveTag(); },
           [](const CollectiveTag&, const c10::intrusive_ptr<CommunicatorWork>&) {}}};
}

std::vector<float> values_of(const at::Tensor& tensor) {
  return {tensor.data_ptr<float>(), tensor.data_ptr<float>() + tensor.numel()};
}

TEST(CommunicatorProcessGroupTest, ReducesSumsAndMaxima) {
  // Ranks hold 1, 2 and 3.
  const auto results = run_ranks(kRanks, [](LocalCommunicator& communicator) {
    CommunicatorProcessGroup group(group_of(communicator));
    EXPECT_EQ(group.getRank(), communicator.rank());
    std::vector<float> values;
    for (const auto op : {c10d::ReduceOp::SUM, c10d::ReduceOp::MAX}) {
      std::vector<at::Tensor> tensors = {
          at::full({1}, static_cast<float>(communicator.rank() + 1))};
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      group.allreduce(tensors, options)->wait();
      values.push_back(tensors[0].item<float>());
    }
    return values;
  });
  EXPECT_THAT(results, Each(ElementsAre(6.0F, 3.0F)));
}

TEST(CommunicatorProcessGroupTest, BroadcastsFromTheRoot) {
  const auto results = run_ranks(kRanks, [](LocalCommunicator& communicator) {
    CommunicatorProcessGroup group(group_of(communicator));
    std::vector<at::Tensor> tensors = {at::full({2}, static_cast<float>(communicator.rank() + 1))};
    c10d::BroadcastOptions options;
    options.rootRank = 1;
    group.broadcast(tensors, options)->wait();
    return values_of(tensors[0]);
  });
  EXPECT_THAT(results, Each(ElementsAre(2.0F, 2.0F)));
}

TEST(CommunicatorProcessGroupTest, GathersIntoTheCallersTensors) {
  const auto results = run_ranks(kRanks, [](LocalCommunicator& communicator) {
    CommunicatorProcessGroup group(group_of(communicator));
    std::vector<at::Tensor> inputs = {at::full({1}, static_cast<float>(communicator.rank() + 1))};
    std::vector<std::vector<at::Tensor>> outputs = {
        {at::zeros({1}), at::zeros({1}), at::zeros({1})}};
    group.allgather(outputs, inputs, {})->wait();
    group.barrier({})->wait();
    return values_of(at::cat(outputs[0]));
  });
  EXPECT_THAT(results, Each(ElementsAre(1.0F, 2.0F, 3.0F)));
}

TEST(CommunicatorProcessGroupTest, RefusesAnotherReduction) {
  const auto outcomes = try_run_ranks(1, [](LocalCommunicator& communicator) {
    CommunicatorProcessGroup group(group_of(communicator));
    std::vector<at::Tensor> tensors = {at::zeros({1})};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MIN;
    group.allreduce(tensors, options);
  });
  EXPECT_TRUE(outcomes[0].error_as<c10::Error>().has_value());
}

TEST(CommunicatorWorkTest, TheFutureIsCompletedByTheWaitAndNotBefore) {
  const auto futures = run_ranks(1, [](LocalCommunicator& communicator) {
    std::vector<at::Tensor> tensors = {at::ones({2})};
    auto inner = communicator.all_reduce(tensors[0], lockstep::ReduceOp::kSum, {});
    const auto work = c10::make_intrusive<CommunicatorWork>(std::move(inner), tensors);
    int num_completions = 0;
    work->getFuture()->addCallback([&](c10::ivalue::Future&) { ++num_completions; });
    EXPECT_FALSE(work->isCompleted());
    EXPECT_EQ(num_completions, 0);
    work->complete();
    work->complete();
    EXPECT_TRUE(work->isCompleted());
    EXPECT_EQ(num_completions, 1);
    return work->getFuture();
  });
  ASSERT_TRUE(futures[0]->completed());
  EXPECT_THAT(values_of(futures[0]->value().toTensorVector()[0]), ElementsAre(1.0F, 1.0F));
}

TEST(CommunicatorWorkTest, ErrorsKeepTheirTypeAndLeaveItOpen) {
  const auto work = c10::make_intrusive<CommunicatorWork>(std::make_unique<PlantedWork>(),
                                                          std::vector<at::Tensor>());
  EXPECT_THROW(work->wait(), TimedOut);
  EXPECT_THROW(work->complete(), TimedOut);
  EXPECT_FALSE(work->isCompleted());
}

}  // namespace
}  // namespace lockstep::harness
