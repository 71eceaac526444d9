// SPDX-License-Identifier: Apache-2.0
// The in-memory ranks that the other tests stand on: results, errors, and who is blamed.
#include "tests/support/run_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "core/error.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RunRanksTest, ReturnsOneResultPerRank) {
  const auto ranks = run_ranks(3, [](LocalCommunicator& communicator) {
    return 10 * communicator.rank() + communicator.world_size();
  });
  EXPECT_THAT(ranks, ElementsAre(3, 13, 23));
}

TEST(RunRanksTest, CollectivesDoWhatTheySay) {
  const auto results = run_ranks(3, [](LocalCommunicator& communicator) {
    const auto mine = static_cast<double>(communicator.rank() + 1);
    const at::Tensor sum = at::full({2}, mine);
    const at::Tensor largest = at::full({}, mine);
    const at::Tensor sent = at::full({1}, mine);
    const at::Tensor gathered = at::zeros({3, 1});
    // All in flight at once, waited for in reverse.
    const auto a = communicator.all_reduce(sum, ReduceOp::kSum, {});
    const auto b = communicator.all_reduce(largest, ReduceOp::kMax, {});
    const auto c = communicator.broadcast(sent, 1, {});
    const auto d = communicator.all_gather(gathered, at::full({1}, mine), {});
    const auto e = communicator.barrier({});
    e->wait();
    d->wait();
    c->wait();
    b->wait();
    a->wait();
    return std::vector<double>{sum[1].item<double>(), largest.item<double>(),
                               sent[0].item<double>(), gathered[0][0].item<double>(),
                               gathered[2][0].item<double>()};
  });
  for (const auto& result : results) {
    EXPECT_THAT(result, ElementsAre(6, 3, 2, 1, 3));
  }
}

TEST(RunRanksTest, RanksThatDisagreeLearnIt) {
  const auto outcomes = try_run_ranks(2, [](LocalCommunicator& communicator) {
    CollectiveTag tag;
    tag.step = communicator.rank();
    communicator.all_reduce(at::zeros({1}), ReduceOp::kSum, tag)->wait();
  });
  for (const auto& outcome : outcomes) {
    const auto error = outcome.error_as<Desync>();
    ASSERT_TRUE(error.has_value());
    EXPECT_THAT(error->what(), HasSubstr("step 1"));
  }
}

TEST(RunRanksTest, NobodyWaitsForARankThatEnded) {
  const auto outcomes = try_run_ranks(2, [](LocalCommunicator& communicator) {
    if (communicator.rank() == 0) {
      communicator.barrier({})->wait();
    }
  });
  EXPECT_TRUE(outcomes[0].error_as<PeerLost>().has_value());
  EXPECT_EQ(outcomes[1].error, nullptr);
}

TEST(RunRanksTest, TheFirstCauseIsRethrownWithItsRankAndItsType) {
  const auto body = [](LocalCommunicator& communicator) {
    if (communicator.rank() == 2) {
      throw UsageError("planned");
    }
    communicator.barrier({})->wait();
  };
  try {
    run_ranks(3, body);
    FAIL() << "nothing was thrown";
  } catch (const RankError& error) {
    EXPECT_EQ(error.rank(), 2);
    EXPECT_THAT(error.what(), HasSubstr("planned"));
    EXPECT_THROW(std::rethrow_if_nested(error), UsageError);
  }
}

}  // namespace
}  // namespace lockstep::test
