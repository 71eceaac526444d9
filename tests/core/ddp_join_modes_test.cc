// SPDX-License-Identifier: Apache-2.0
// Joins of wrappers whose collectives have another shape: static graphs, hooks, sparse gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/types.h>

#include "core/comm_hook.h"
#include "core/error.h"
#include "tests/core/buffered_module.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(DdpJoinModesTest, AStaticGraphIsJoinedOnceItIsRecorded) {
  DdpOptions options = one_parameter_per_bucket();
  options.static_graph = true;
  const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(3);
    BankDdp ddp(bank.ptr(), communicator, options);
    // p2 is used by rank 1 only, p0 by both, p1 by none.
    const std::vector<Term> terms = communicator.rank() == 0
                                        ? std::vector<Term>{{0, 4.0}}
                                        : std::vector<Term>{{0, 8.0}, {2, 8.0}};
    std::vector<Values> seen;
    ddp.join([&] {
      for (std::int64_t i = 0; i < 1 + 4 * communicator.rank(); ++i) {
        clear_gradients(*bank);
        train_once(ddp, terms);
        seen.push_back(gradients(*bank));
      }
    });
    EXPECT_EQ(ddp.engine().bucket_layout()->buckets.size(), 3);  // rebuilt on both
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre(Values{6, kNone, 4}));
  EXPECT_EQ(results[1][0], (Values{6, kNone, 4}));
  for (std::size_t i = 1; i < 5; ++i) {
    EXPECT_EQ(results[1][i], (Values{4, kNone, 4}));
  }
}

TEST(DdpJoinModesTest, ARankThatJoinsBeforeAStaticGraphIsRecordedIsAnErrorOnEveryRank) {
  DdpOptions options;
  options.static_graph = true;
  const auto outcomes = try_run_ranks(3, [&](LocalCommunicator& communicator) {
    NotingDdp ddp(std::make_shared<NotingImpl>(), communicator, options);
    ddp.join([&] {
      if (communicator.rank() != 1) {
        ddp.forward().backward();
      }
    });
  });
  for (const auto& outcome : outcomes) {
    const auto error = outcome.error_as<DdpError>();
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->kind(), "join_static_graph");
  }
}

TEST(DdpJoinModesTest, ACommunicationHookSeesZerosOnJoinedRanksAndIsNotDividedFor) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator);
    Values in_buckets;
    ddp.register_comm_hook(
        [&](const GradBucket& bucket) {
          in_buckets.push_back(bucket.buffer.sum().item<double>());
          return PendingTensor(communicator.all_reduce(bucket.buffer, ReduceOp::kSum, bucket.tag),
                               bucket.buffer);
        },
        "sum");
    JoinOptions options;
    options.divide_by_initial_world_size = false;
    Values seen;
    ddp.join(
        [&] {
          for (std::int64_t i = 0; i <= communicator.rank(); ++i) {
            clear_gradients(*bank);
            train_once(ddp, all_terms(2, mine(communicator)));
            seen.push_back(gradients(*bank)[0]);
          }
        },
        options);
    return std::make_pair(in_buckets, seen);
  });
  EXPECT_EQ(results[0], std::make_pair(Values{2, 0}, Values{3}));
  EXPECT_EQ(results[1], std::make_pair(Values{4, 4}, Values{3, 2}));
}

TEST(DdpJoinModesTest, SparseGradientsOfJoinedRanksHaveNoRows) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(4, 1).sparse(true));
    DistributedDataParallel<torch::nn::EmbeddingImpl> ddp(embedding.ptr(), communicator);
    Values seen;
    ddp.join([&] {
      for (std::int64_t i = 0; i <= communicator.rank(); ++i) {
        clear_gradients(*embedding);
        ddp(at::tensor({communicator.rank()}, at::kLong)).sum().backward();
        const at::Tensor dense = embedding->weight.grad().to_dense();
        seen.push_back(dense[0].item<double>());
        seen.push_back(dense[1].item<double>());
      }
    });
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre(0.5, 0.5));
  EXPECT_THAT(results[1], ElementsAre(0.5, 0.5, 0, 0.5));
}

// The hook's second collective is issued when its result is awaited: at the end of the reduction.
TEST(DdpJoinModesTest, ABufferHookRunsOnJoinedRanksTooAndIsAwaitedWhereActiveRanksDo) {
  for (const auto point : {BufferHookPoint::kPreForward, BufferHookPoint::kPostForward}) {
    const auto calls = run_ranks(2, [&](LocalCommunicator& communicator) {
      const auto module = std::make_shared<NotingImpl>();
      NotingDdp ddp(module, communicator);
      int called = 0;
      ddp.register_buffer_hook(
          [&](const std::map<std::string, at::Tensor>& buffers) {
            ++called;
            std::vector<PendingTensor> pending;
            const at::Tensor& factor = buffers.at("factor");
            pending.push_back(
                PendingTensor(communicator.all_reduce(factor, ReduceOp::kMax, {}), factor)
                    .then([&communicator](at::Tensor highest) {
                      communicator.all_reduce(highest.clone(), ReduceOp::kSum, {})->wait();
                      return highest;
                    }));
            return pending;
          },
          point);
      ddp.join([&] {
        for (std::int64_t i = 0; i < 3 * communicator.rank(); ++i) {
          ddp().backward();
        }
      });
      return called;
    });
    EXPECT_THAT(calls, Each(3));
  }
}

TEST(DdpJoinModesTest, SeveralWrappersAreJoinedTogether) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank first = scalar_bank(1);
    ParameterBank second = scalar_bank(2);
    BankDdp one(first.ptr(), communicator);
    BankDdp two(second.ptr(), communicator);
    JoinOptions options;
    options.divide_by_initial_world_size = false;
    Values seen;
    join(
        {&one.engine().joinable(), &two.engine().joinable()},
        [&] {
          for (std::int64_t i = 0; i <= communicator.rank(); ++i) {
            clear_gradients(*first);
            clear_gradients(*second);
            train_once(one, all_terms(1, mine(communicator)));
            train_once(two, all_terms(2, 4 * mine(communicator)));
            seen.push_back(gradients(*first)[0]);
            seen.push_back(gradients(*second)[1]);
          }
        },
        options);
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre(1.5, 6));
  EXPECT_THAT(results[1], ElementsAre(1.5, 6, 2, 8));
}

}  // namespace
}  // namespace lockstep::test
