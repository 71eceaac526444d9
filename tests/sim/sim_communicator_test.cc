// SPDX-License-Identifier: Apache-2.0
// What the simulator adds to the contract of Communicator: mismatches and their errors.
#include "sim/sim_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "sim/world.h"
#include "tests/sim/simulate.h"

namespace lockstep::test {
namespace {

using sim::RankContext;
using sim::RankEnd;
using sim::WorldResult;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(SimCommunicatorTest, FailsAllRanksWhereTwoDisagreeOnTheKind) {
  const WorldResult result = simulate(3, [](RankContext& rank) {
    sum_and_wait(rank, at::ones({4}));
    const CollectiveTag tag{CallSite::kBuffers, 1, -1};
    if (rank.rank() == 1) {
      rank.communicator().broadcast(at::ones({4}), 0, tag)->wait();
    } else {
      sum_and_wait(rank, at::ones({4}), bucket_tag(1, 0));
    }
  });
  // Rank 2 completed the sum before, went on, and so was the first to issue collective 1.
  ASSERT_TRUE(result.mismatch.has_value());
  EXPECT_EQ(result.mismatch->first_rank, 1);
  EXPECT_EQ(result.mismatch->second_rank, 2);
  EXPECT_EQ(result.mismatch->first.seq, 1);
  EXPECT_EQ(result.mismatch->first.kind, CollectiveKind::kBroadcast);
  EXPECT_FALSE(result.deadlock);
  for (const auto& rank : result.ranks) {
    EXPECT_EQ(rank.end, RankEnd::kFailed);
    EXPECT_EQ(message_of<Desync>(rank.error),
              "collective 1: rank 1 issued broadcast (buffers, step 1, 4 x Float, from rank 0) but "
              "rank 2 issued all_reduce (bucket 0, step 1, 4 x Float)");
  }
}

// Rank 1's variant of the sum of four floats that rank 0 issues.
WorldResult disagree(const std::function<std::unique_ptr<Work>(Communicator&)>& launch,
                     bool check_tags = true) {
  sim::WorldOptions options = world_of(2);
  options.check_tags = check_tags;
  return sim::run_world(options, [&](RankContext& rank) {
    if (rank.rank() == 0) {
      sum_and_wait(rank, at::ones({4}), bucket_tag(0, 0));
    } else {
      launch(rank.communicator())->wait();
    }
  });
}

TEST(SimCommunicatorTest, SeesADifferenceInSizeTypeAndOperation) {
  for (const bool check_tags : {true, false}) {
    const auto size = disagree(
        [](Communicator& c) {
          return c.all_reduce(at::ones({5}), ReduceOp::kSum, bucket_tag(0, 0));
        },
        check_tags);
    EXPECT_THAT(message_of<Desync>(size.ranks[0].error), HasSubstr("5 x Float"));
    const auto type = disagree(
        [](Communicator& c) {
          return c.all_reduce(at::ones({4}, at::kDouble), ReduceOp::kSum, bucket_tag(0, 0));
        },
        check_tags);
    EXPECT_THAT(message_of<Desync>(type.ranks[1].error), HasSubstr("4 x Double"));
    const auto op = disagree(
        [](Communicator& c) {
          return c.all_reduce(at::ones({4}), ReduceOp::kMax, bucket_tag(0, 0));
        },
        check_tags);
    EXPECT_THAT(message_of<Desync>(op.ranks[1].error), HasSubstr("all_reduce max"));
  }
}

TEST(SimCommunicatorTest, SeesADifferenceInTheRoot) {
  const WorldResult result = simulate(2, [](RankContext& rank) {
    rank.communicator().broadcast(at::ones({4}), rank.rank(), {})->wait();
  });
  EXPECT_THAT(message_of<Desync>(result.ranks[0].error),
              AllOf(HasSubstr("from rank 0"), HasSubstr("from rank 1")));
}

TEST(SimCommunicatorTest, SeesATagOfAnotherStepThoughKindAndSizeAgree) {
  const auto launch = [](Communicator& c) {
    return c.all_reduce(at::ones({4}), ReduceOp::kSum, bucket_tag(1, 0));
  };
  const WorldResult checked = disagree(launch, /*check_tags=*/true);
  EXPECT_THAT(message_of<Desync>(checked.ranks[0].error),
              AllOf(HasSubstr("step 0"), HasSubstr("step 1")));
  const WorldResult unchecked = disagree(launch, /*check_tags=*/false);
  EXPECT_FALSE(unchecked.mismatch.has_value());
  EXPECT_EQ(unchecked.ranks[0].end, RankEnd::kFinished);
}

TEST(SimCommunicatorTest, MixesTheDataOfWronglyPairedCollectivesWithoutTags) {
  sim::WorldOptions options = world_of(2);
  options.check_tags = false;
  std::vector<at::Tensor> gradients(2);
  sim::run_world(options, [&](RankContext& rank) {
    // Rank 0 reduces bucket 0 and then 1, rank 1 the other way round.
    at::Tensor values = at::full({1}, 10.0 + static_cast<double>(rank.rank()));
    sum_and_wait(rank, values, bucket_tag(0, rank.rank()));
    gradients[static_cast<std::size_t>(rank.rank())] = values;
  });
  EXPECT_EQ(gradients[0].item<float>(), 21);
  EXPECT_EQ(gradients[1].item<float>(), 21);
}

TEST(SimCommunicatorTest, ThrowsAMismatchFromWaitAgainAndForLaterCollectivesButNeverFromALaunch) {
  std::vector<int> num_desyncs(2);
  const WorldResult result = simulate(2, [&](RankContext& rank) {
    Communicator& communicator = rank.communicator();
    const auto early = communicator.barrier({});
    const auto wrong = communicator.all_reduce(at::ones({1 + rank.rank()}), ReduceOp::kSum, {});
    const auto late = communicator.barrier({});
    early->wait();
    for (Work* work : {wrong.get(), wrong.get(), late.get()}) {
      try {
        work->wait();
      } catch (const Desync&) {
        ++num_desyncs[static_cast<std::size_t>(rank.rank())];
      }
    }
  });
  EXPECT_EQ(num_desyncs, (std::vector<int>{3, 3}));
  EXPECT_EQ(result.ranks[0].end, RankEnd::kFinished);
}

TEST(SimCommunicatorTest, RefusesWhatCannotBeCommunicatedBeforeAnyEffect) {
  const WorldResult result = simulate(2, [](RankContext& rank) {
    Communicator& c = rank.communicator();
    const at::Tensor matrix = at::ones({3, 4});
    EXPECT_THROW(c.all_reduce(matrix.t(), ReduceOp::kSum, {}), UsageError);
    EXPECT_THROW(c.all_reduce({}, ReduceOp::kSum, {}), UsageError);
    EXPECT_THROW(c.all_reduce(at::ones({2}, at::kBool), ReduceOp::kSum, {}), UsageError);
    EXPECT_THROW(c.all_reduce(at::ones({2}).to_sparse(), ReduceOp::kSum, {}), UsageError);
    EXPECT_THROW(c.broadcast(matrix, 2, {}), UsageError);
    EXPECT_THROW(c.broadcast(matrix, -1, {}), UsageError);
    EXPECT_THROW(c.all_gather(at::ones({3, 4}), at::ones({4}), {}), UsageError);
    EXPECT_THROW(c.all_gather(at::ones({2, 4}), at::ones({4}, at::kDouble), {}), UsageError);
    // Nothing of the above took a place in the sequence.
    if (rank.rank() == 0) {
      EXPECT_THROW(c.all_reduce(matrix.t(), ReduceOp::kSum, {}), UsageError);
    }
    sum_and_wait(rank, at::ones({2}));
  });
  EXPECT_EQ(result.ranks[0].end, RankEnd::kFinished);
  EXPECT_EQ(result.ranks[1].end, RankEnd::kFinished);
}

// Who reads too early reads the same in every run, whatever lay in that memory before.
TEST(SimCommunicatorTest, AGathersOutputHoldsAFixedPatternUntilItCompletes) {
  std::vector<at::Tensor> too_early;
  for (const double before : {1.0, 2.0}) {
    for (const bool in_place : {false, true}) {
      simulate(2, [&](RankContext& rank) {
        const at::Tensor output = at::full({2, 3}, before);
        const at::Tensor input = in_place ? output[rank.rank()] : at::full({3}, before);
        const auto work = rank.communicator().all_gather(output, input, {});
        if (rank.rank() == 0) {
          too_early.push_back(output[1].clone());
          EXPECT_EQ(output[0].equal(input), in_place);
        }
        work->wait();
        EXPECT_TRUE(output.equal(at::full({2, 3}, before)));
      });
    }
  }
  for (const at::Tensor& seen : too_early) {
    EXPECT_TRUE(seen.equal(too_early.front()));
    EXPECT_FALSE(seen.equal(at::full({3}, 1.0)));
  }
}

TEST(SimCommunicatorTest, LeavesVersionCountersAndGraphsAlone) {
  simulate(2, [](RankContext& rank) {
    at::Tensor parameter = at::full({2}, static_cast<double>(rank.rank())).requires_grad_();
    const auto version = parameter._version();
    rank.communicator().broadcast(parameter, 1, {})->wait();
    EXPECT_EQ(parameter._version(), version);
    EXPECT_TRUE(parameter.is_leaf());
    EXPECT_EQ(parameter[0].item<float>(), 1);
  });
}

}  // namespace
}  // namespace lockstep::test
