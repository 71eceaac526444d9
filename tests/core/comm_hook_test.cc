// SPDX-License-Identifier: Apache-2.0
// What a communication hook sees, and what becomes of its result.
#include "core/comm_hook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <stdexcept>

#include "core/comm_hooks.h"
#include "core/error.h"
#include "tests/core/dictated.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PendingTensorTest, RunsItsStepsOnceInOrderAndOnlyWhenAwaited) {
  std::vector<int> order;
  PendingTensor pending = PendingTensor(at::full({1}, 2.0))
                              .then([&](const at::Tensor& tensor) {
                                order.push_back(1);
                                return tensor + 3;
                              })
                              .then([&](const at::Tensor& tensor) {
                                order.push_back(2);
                                return tensor * 10;
                              });
  EXPECT_TRUE(order.empty());
  EXPECT_EQ(pending.wait().item<double>(), 50);
  EXPECT_EQ(pending.wait().item<double>(), 50);
  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST(PendingTensorTest, ThrowsTheSameErrorAgain) {
  int calls = 0;
  PendingTensor pending = PendingTensor(at::zeros({1})).then([&](const at::Tensor&) -> at::Tensor {
    ++calls;
    throw std::runtime_error("planned");
  });
  EXPECT_THROW(pending.wait(), std::runtime_error);
  EXPECT_THROW(pending.wait(), std::runtime_error);
  EXPECT_EQ(calls, 1);
}

// Sums undivided, so that what the hook gets and what is done with its result both show.
CommHook sum_hook(Communicator& communicator) {
  return [&communicator](const GradBucket& bucket) {
    return PendingTensor(communicator.all_reduce(bucket.buffer, ReduceOp::kSum, bucket.tag),
                         bucket.buffer);
  };
}

// Sum over ranks of r + 1; nothing is divided before or after (N3), whichever way gradients enter
// the bucket: copied after being undefined, or already lying there.
TEST(CommHookTest, GetsUndividedGradientsAndItsResultIsFinal) {
  for (const bool as_view : {false, true}) {
    for (const std::int64_t world_size : {1, 2, 3, 4}) {
      const auto results = run_ranks(world_size, [&](LocalCommunicator& communicator) {
        ParameterBank bank = scalar_bank(3);
        DdpOptions options = one_parameter_per_bucket();
        options.gradient_as_bucket_view = as_view;
        BankDdp ddp(bank.ptr(), communicator, options);
        ddp.register_comm_hook(sum_hook(communicator), "sum");
        std::vector<double> seen;
        for (int step = 0; step < 4; ++step) {
          if (step < 2) {
            clear_gradients(*bank);
          } else {
            bank->zero_grad();
          }
          train_once(ddp, all_terms(3, static_cast<double>(communicator.rank() + 1)));
          const auto now = gradients(*bank);
          seen.insert(seen.end(), now.begin(), now.end());
        }
        return seen;
      });
      const auto sum = static_cast<double>(world_size * (world_size + 1) / 2);
      for (const auto& seen : results) {
        EXPECT_THAT(seen, Each(sum)) << world_size << " ranks, views " << as_view;
      }
    }
  }
}

// Parameters of 1, 2 and 3 elements; ready order 2, 1, 0, so that is the order after the rebuild.
TEST(CommHookTest, IsCalledOncePerBucketInLaunchOrderAndToldWhatTheBucketHolds) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank(std::vector<std::vector<std::int64_t>>{{1}, {2}, {1, 3}});
    DdpOptions options;
    options.first_bucket_cap_bytes = 12;
    options.bucket_cap_bytes = 12;
    BankDdp ddp(bank.ptr(), communicator, options);
    std::vector<std::string> calls;
    ddp.register_comm_hook(
        [&](const GradBucket& bucket) {
          std::string call = std::to_string(bucket.index) + "/" + std::to_string(bucket.count) +
                             (bucket.is_last() ? " last" : "") + ":";
          for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
            call += " " + std::to_string(bucket.offsets[i]) + "+" +
                    std::to_string(bucket.lengths[i]) + "=p" +
                    std::to_string(bucket.parameters[i].view({-1})[0].item<int>() - 1);
            EXPECT_EQ(bucket.sizes[i], bucket.parameters[i].sizes().vec());
          }
          calls.push_back(call);
          return sum_hook(communicator)(bucket);
        },
        "spy");
    train_once(ddp, all_terms(3));
    train_once(ddp, all_terms(3));
    return calls;
  });
  EXPECT_THAT(results[0], ElementsAre("0/1 last: 0+1=p0 1+2=p1 3+3=p2", "0/2: 0+3=p2",
                                      "1/2 last: 0+2=p1 2+1=p0"));
}

TEST(CommHookTest, EveryBucketOfAStaticGraphHasItsTrueIndexFromTheFirstIterationOn) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<DictatedImpl>(
        std::vector<at::Tensor>{at::zeros({1}), at::zeros({1}, at::kDouble)});
    DdpOptions options;
    options.static_graph = true;
    DictatedDdp ddp(module, communicator, options);
    std::vector<std::int64_t> indices;
    ddp.register_comm_hook(
        [&](const GradBucket& bucket) {
          indices.push_back(bucket.index + (bucket.is_last() ? 10 : 0));
          return sum_hook(communicator)(bucket);
        },
        "spy");
    for (int step = 0; step < 3; ++step) {
      module->zero_grad();
      ddp(std::vector<at::Tensor>{at::ones({1}), at::ones({1}, at::kDouble)}).backward();
      EXPECT_EQ(module->values[1].grad().item<double>(), 2);
    }
    return indices;
  });
  EXPECT_THAT(results[0], ElementsAre(0, 11, 0, 11, 0, 11));
}

// 1 and 2 accumulate on each of 2 ranks; the hook sums 3 + 3.
TEST(CommHookTest, IsNotCalledUnderNoSyncAndThenSeesWhatWasAccumulated) {
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(2);
      DdpOptions options;
      options.gradient_as_bucket_view = as_view;
      BankDdp ddp(bank.ptr(), communicator, options);
      int calls = 0;
      ddp.register_comm_hook(
          [&](const GradBucket& bucket) {
            ++calls;
            return sum_hook(communicator)(bucket);
          },
          "spy");
      std::vector<double> seen;
      for (int window = 0; window < 3; ++window) {
        bank->zero_grad();
        ddp.no_sync([&] { train_once(ddp, all_terms(2, 1.0)); });
        seen.push_back(calls);
        train_once(ddp, all_terms(2, 2.0));
        seen.push_back(gradients(*bank)[1]);
      }
      return seen;
    });
    EXPECT_THAT(results[0], ElementsAre(0, 6, 1, 6, 2, 6));
  }
}

TEST(CommHookTest, ViewsOfTheBufferHaveTheParametersStrides) {
  const auto results = run_ranks(1, [](LocalCommunicator& communicator) {
    const at::Tensor channels_last = at::zeros({2, 3, 2, 2}).to(at::MemoryFormat::ChannelsLast);
    const at::Tensor wanted = sevenths(0, {2, 3, 2, 2});
    const auto module = std::make_shared<DictatedImpl>(
        std::vector<at::Tensor>{at::zeros({3}), channels_last, at::zeros({4, 3}).t()});
    DictatedDdp ddp(module, communicator);
    std::vector<bool> good;
    ddp.register_comm_hook(
        [&](const GradBucket& bucket) {
          const std::vector<at::Tensor> gradients = bucket.gradients();
          for (std::size_t i = 0; i < gradients.size(); ++i) {
            good.push_back(gradients[i].strides() == bucket.parameters[i].strides());
            good.push_back(gradients[i].is_alias_of(bucket.buffer));
          }
          good.push_back(gradients[1].equal(wanted));
          gradients[1].mul_(2);
          return PendingTensor(bucket.buffer);
        },
        "spy");
    ddp(std::vector<at::Tensor>{at::ones({3}), wanted, at::ones({3, 4})}).backward();
    good.push_back(module->values[1].grad().equal(wanted * 2));
    return good;
  });
  EXPECT_THAT(results[0], Each(true));
  EXPECT_EQ(results[0].size(), 8U);
}

// Another tensor, another shape and another dtype, of equal numel, in the bucket's order.
TEST(CommHookTest, AResultOfAnotherDtypeAndShapeIsConverted) {
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(1, [&](LocalCommunicator& communicator) {
      ParameterBank bank(std::vector<std::vector<std::int64_t>>{{1}, {2}, {3}});
      DdpOptions options;
      options.gradient_as_bucket_view = as_view;
      BankDdp ddp(bank.ptr(), communicator, options);
      ddp.register_comm_hook(
          [](const GradBucket&) {
            return PendingTensor(at::tensor({5, 7, 7, 9, 9, 9}, at::kDouble).view({2, 3}));
          },
          "constant");
      train_once(ddp, all_terms(3));
      return gradients(*bank);
    });
    EXPECT_THAT(results[0], ElementsAre(5, 7, 9));
  }
}

TEST(CommHookTest, LaterCollectivesOfAChainPairUpAcrossRanks) {
  const auto results = run_ranks(3, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(3);
    BankDdp ddp(bank.ptr(), communicator, one_parameter_per_bucket());
    ddp.register_comm_hook(
        [&](const GradBucket& bucket) {
          return sum_hook(communicator)(bucket).then([&, bucket](const at::Tensor& sum) {
            communicator.all_reduce(sum, ReduceOp::kSum, bucket.tag)->wait();
            return sum;
          });
        },
        "twice");
    std::vector<double> seen;
    for (int step = 0; step < 2; ++step) {
      clear_gradients(*bank);
      train_once(ddp, all_terms(3, static_cast<double>(communicator.rank())));  // 0 + 1 + 2 = 3
      seen.push_back(gradients(*bank)[2]);
    }
    return seen;
  });
  EXPECT_THAT(results, Each(ElementsAre(9, 9)));
}

template <typename F>
DdpError ddp_error_of(F&& body) {
  const auto outcomes = try_run_ranks(1, std::forward<F>(body));
  const auto error = outcomes[0].template error_as<DdpError>();
  return error.has_value() ? *error : DdpError("none", "no error");
}

TEST(CommHookTest, ASecondHookIsRefusedAndNamesBoth) {
  const DdpError error = ddp_error_of([](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    ddp.register_comm_hook(noop_hook(), "first");
    ddp.register_comm_hook(noop_hook(), "second");
  });
  EXPECT_EQ(error.kind(), "hook_registered_twice");
  EXPECT_THAT(error.what(), HasSubstr("first"));
  EXPECT_THAT(error.what(), HasSubstr("second"));
}

TEST(CommHookTest, AResultThatDoesNotFitIsNamed) {
  const std::vector<at::Tensor> misfits = {
      at::zeros({2}), at::Tensor(), at::zeros({3}, at::kComplexFloat), at::eye(3).to_sparse()};
  for (const at::Tensor& misfit : misfits) {
    const DdpError error = ddp_error_of([&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(3);
      BankDdp ddp(bank.ptr(), communicator);
      ddp.register_comm_hook([&](const GradBucket&) { return PendingTensor(misfit); }, "bad");
      train_once(ddp, all_terms(3));
    });
    EXPECT_EQ(error.kind(), "hook_result_mismatch");
    EXPECT_THAT(error.parameters(), ElementsAre("p0", "p1", "p2"));
    EXPECT_THAT(error.what(), HasSubstr("bad"));
  }
}

TEST(CommHookTest, AnErrorInsideAHookComesOutOfBackwardAndLeavesTheReductionUnfinished) {
  for (const bool when_awaited : {false, true}) {
    const auto results = run_ranks(1, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(2);
      BankDdp ddp(bank.ptr(), communicator);
      ddp.register_comm_hook(
          [&](const GradBucket& bucket) {
            if (!when_awaited) {
              throw std::runtime_error("planned");
            }
            return PendingTensor(bucket.buffer).then([](const at::Tensor&) -> at::Tensor {
              throw std::runtime_error("planned");
            });
          },
          "bad");
      std::vector<std::string> seen;
      try {
        train_once(ddp, all_terms(2));
      } catch (const std::runtime_error& error) {
        seen.emplace_back(error.what());
      }
      try {
        ddp.check_finalized();
      } catch (const DdpError& error) {
        seen.push_back(error.kind());
      }
      return seen;
    });
    EXPECT_THAT(results[0], ElementsAre(HasSubstr("planned"), "reduction_unfinished"));
  }
}

TEST(CommHookTest, AHookInTheMiddleOfAReductionIsRefused) {
  run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator);
    train_once(ddp, {{0}});
    EXPECT_THROW(ddp.register_comm_hook(noop_hook(), "late"), UsageError);
    EXPECT_THROW(ddp.register_comm_hook(nullptr, "empty"), UsageError);
  });
}

}  // namespace
}  // namespace lockstep::test
