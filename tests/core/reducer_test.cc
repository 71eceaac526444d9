// SPDX-License-Identifier: Apache-2.0
// Backward: averages, launch order, overlap, what is local, and errors.
#include "core/reducer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "core/error.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

double coefficient_of(const LocalCommunicator& communicator) {
  return static_cast<double>(communicator.rank() + 1);
}

TEST(ReducerTest, GradientsAreTheMeanOverRanksWhenBackwardReturns) {
  for (const bool as_view : {false, true}) {
    for (const std::int64_t world_size : {1, 2, 4}) {
      const auto results = run_ranks(world_size, [&](LocalCommunicator& communicator) {
        ParameterBank bank(std::vector<std::vector<std::int64_t>>{{3}, {2, 2}, {}, {0}});
        DdpOptions options;
        options.gradient_as_bucket_view = as_view;
        BankDdp ddp(bank.ptr(), communicator, options);
        std::vector<double> seen;
        for (int step = 0; step < 3; ++step) {
          clear_gradients(*bank);
          train_once(ddp, {{0, coefficient_of(communicator)}, {1, 4.0}, {2, 8.0}, {3, 1.0}});
          seen.push_back(bank->parameter(0).grad()[1].item<double>());
          seen.push_back(bank->parameter(1).grad()[1][1].item<double>());
          seen.push_back(static_cast<double>(bank->parameter(3).grad().numel()));
        }
        return seen;
      });
      const double mean = static_cast<double>(world_size + 1) / 2;  // of 1 .. W
      for (const auto& seen : results) {
        EXPECT_THAT(seen, ElementsAre(mean, 4, 0, mean, 4, 0, mean, 4, 0));
      }
    }
  }
}

TEST(ReducerTest, TheFirstIterationHasOneBucketAndLaterOnesTheRebuiltOnes) {
  const auto counts = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(5);
    BankDdp ddp(bank.ptr(), communicator, one_parameter_per_bucket());
    std::vector<std::int64_t> launched;
    for (int step = 0; step < 3; ++step) {
      communicator.clear_log();
      train_once(ddp, all_terms(5));
      launched.push_back(communicator.count(CallSite::kBucket));
    }
    return launched;
  });
  EXPECT_THAT(counts[0], ElementsAre(1, 5, 5));
}

// After the rebuild on the order 4,3,2,1,0 each parameter has its own bucket in that order.
TEST(ReducerTest, BucketsAreLaunchedInOrderWhateverTheOrderOfGradients) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(5);
    EventLog events;
    DdpOptions options = one_parameter_per_bucket();
    options.observer = &events;
    BankDdp ddp(bank.ptr(), communicator, options);
    train_once(ddp, all_terms(5));
    events.events.clear();
    communicator.clear_log();
    // Ready order 2, 0, 4, 1, 3 on rank 0 and another one on rank 1.
    std::vector<Term> terms = {{3}, {1}, {4}, {0}, {2}};
    if (communicator.rank() == 1) {
      std::swap(terms[0], terms[4]);
    }
    train_once(ddp, terms);
    std::vector<std::int64_t> tags;
    for (const CollectiveRecord& record : communicator.log()) {
      if (record.tag.site == CallSite::kBucket) {
        tags.push_back(record.tag.bucket);
      }
    }
    return std::make_tuple(events.indices_of(EventKind::kGradientReady),
                           events.indices_of(EventKind::kBucketLaunched), tags);
  });
  EXPECT_THAT(std::get<0>(results[0]), ElementsAre(2, 0, 4, 1, 3));
  EXPECT_THAT(std::get<0>(results[1]), ElementsAre(3, 0, 4, 1, 2));
  for (const auto& [ready, launched, tags] : results) {
    EXPECT_THAT(launched, ElementsAre(0, 1, 2, 3, 4));
    EXPECT_THAT(tags, ElementsAre(0, 1, 2, 3, 4));
  }
}

TEST(ReducerTest, ABucketIsLaunchedBeforeTheLastGradientIsReady) {
  const auto positions = run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(3);
    EventLog events;
    DdpOptions options = one_parameter_per_bucket();
    options.observer = &events;
    BankDdp ddp(bank.ptr(), communicator, options);
    train_once(ddp, all_terms(3));  // buckets become {2}, {1}, {0}
    events.events.clear();
    train_once(ddp, all_terms(3));
    const std::int64_t launch_of_first = events.position_of(EventKind::kBucketLaunched, 0);
    const std::int64_t last_gradient = events.position_of(EventKind::kGradientReady, 0);
    const std::int64_t launch_of_last = events.position_of(EventKind::kBucketLaunched, 2);
    return std::vector<std::int64_t>{launch_of_first, last_gradient, launch_of_last};
  });
  EXPECT_GE(positions[0][0], 0);
  EXPECT_LT(positions[0][0], positions[0][1]);
  EXPECT_LT(positions[0][1], positions[0][2]);
}

TEST(ReducerTest, ACompleteBucketWaitsForItsPredecessor) {
  const auto positions = run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    EventLog events;
    DdpOptions options = one_parameter_per_bucket();
    options.observer = &events;
    BankDdp ddp(bank.ptr(), communicator, options);
    train_once(ddp, all_terms(2));  // buckets become {1}, {0}
    events.events.clear();
    train_once(ddp, {{1}, {0}});  // 0 is ready first, 1 second
    return std::vector<std::int64_t>{events.position_of(EventKind::kGradientReady, 0),
                                     events.position_of(EventKind::kGradientReady, 1),
                                     events.position_of(EventKind::kBucketLaunched, 0),
                                     events.position_of(EventKind::kBucketLaunched, 1)};
  });
  EXPECT_THAT(positions[0], ElementsAre(2, 3, 4, 5));  // 0 is the forward, 1 the rebuild
}

TEST(ReducerTest, TheWholeAccumulatedGradientIsReduced) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    train_once(ddp, {{0, coefficient_of(communicator)}});  // mean of 1, 2 = 1.5
    train_once(ddp, {{0, coefficient_of(communicator)}});  // mean of 1.5 + 1, 1.5 + 2 = 3
    return gradients(*bank);
  });
  EXPECT_THAT(results[0], ElementsAre(3.0));
  EXPECT_THAT(results[1], ElementsAre(3.0));
}

TEST(ReducerTest, ASecondBackwardAfterTheReductionIsLocal) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    const at::Tensor loss = ddp(std::vector<Term>{{0, coefficient_of(communicator)}});
    loss.backward({}, /*retain_graph=*/true);  // mean 1.5
    loss.backward();                           // + 1 or + 2
    return gradients(*bank);
  });
  EXPECT_THAT(results[0], ElementsAre(2.5));
  EXPECT_THAT(results[1], ElementsAre(3.5));
}

TEST(ReducerTest, TwoForwardsAndOneBackwardOverTheirSumReduceTheSum) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    const std::vector<Term> terms = {{0, coefficient_of(communicator)}};
    (ddp(terms) + ddp(terms)).backward();
    return gradients(*bank);
  });
  EXPECT_THAT(results[0], ElementsAre(3.0));
}

// Two outputs of one forward, one backward each; what lies between is local (F7).
struct TwoOutputsImpl : torch::nn::Module {
  TwoOutputsImpl()
      : a(register_parameter("a", torch::ones({1}))),
        b(register_parameter("b", torch::ones({1}))) {}
  std::tuple<at::Tensor, at::Tensor> forward(double k) { return {a * k, b * k}; }
  at::Tensor a, b;
};

TEST(ReducerTest, OneBackwardPerOutputReducesInTheLastOne) {
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      const auto module = std::make_shared<TwoOutputsImpl>();
      DdpOptions options;
      options.gradient_as_bucket_view = as_view;
      DistributedDataParallel<TwoOutputsImpl> ddp(module, communicator, options);
      std::vector<double> seen;
      for (int step = 0; step < 3; ++step) {
        clear_gradients(*module);
        const auto [first, second] = ddp(coefficient_of(communicator));
        first.sum().backward();
        second.sum().backward();
        seen.push_back(module->a.grad().item<double>());
        seen.push_back(module->b.grad().item<double>());
      }
      return seen;
    });
    EXPECT_THAT(results[1], ElementsAre(1.5, 1.5, 1.5, 1.5, 1.5, 1.5));
  }
}

// The reduction of the first backward disarms, so the second stays local (F9).
TEST(ReducerTest, OfTwoForwardsWithABackwardEachOnlyTheFirstIsReduced) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    const at::Tensor first = ddp(all_terms(1, coefficient_of(communicator)));
    const at::Tensor second = ddp(all_terms(1, coefficient_of(communicator)));
    first.backward();
    second.backward();
    return gradients(*bank)[0];
  });
  EXPECT_THAT(results, ElementsAre(1.5 + 1, 1.5 + 2));
}

TEST(ReducerTest, AForwardWithoutBackwardIsAllowed) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator);
    for (int i = 0; i < 3; ++i) {
      ddp(all_terms(2));
    }
    train_once(ddp, all_terms(2, coefficient_of(communicator)));
    return gradients(*bank);
  });
  EXPECT_THAT(results[0], ElementsAre(1.5, 1.5));
}

TEST(ReducerTest, SeveralBackwardsOfOneForwardReduceWhenTheLastBucketIsComplete) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator);
    ddp(all_terms(2));
    const double mine = coefficient_of(communicator);
    (bank->parameter(0) * mine).sum().backward();
    const std::vector<double> between = gradients(*bank);
    (bank->parameter(1) * mine).sum().backward();
    std::vector<double> all = between;
    const std::vector<double> after = gradients(*bank);
    all.insert(all.end(), after.begin(), after.end());
    return all;
  });
  EXPECT_THAT(results[0], ElementsAre(1.0, kNone, 1.5, 1.5));
  EXPECT_THAT(results[1], ElementsAre(2.0, kNone, 1.5, 1.5));
}

TEST(ReducerTest, AParameterWithoutGradientIsNamedByTheNextForward) {
  const auto outcomes = try_run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(4);
    BankDdp ddp(bank.ptr(), communicator);
    train_once(ddp, {{0}, {2}});  // backward itself does not fail
    const at::NoGradGuard no_grad;
    ddp(all_terms(4));  // nor does a forward without gradients
    {
      const at::AutoGradMode grad(true);
      ddp(all_terms(4));
    }
  });
  const auto error = outcomes[0].error_as<DdpError>();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), "reduction_unfinished");
  EXPECT_THAT(error->parameters(), ElementsAre("p1", "p3"));
  EXPECT_THAT(error->what(), HasSubstr("p1 (index 1), p3 (index 3)"));
  EXPECT_THAT(error->what(), HasSubstr("find_unused_parameters"));
}

TEST(ReducerTest, WithoutFindUnusedAnUnusedParameterLeavesEveryGradientLocal) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator);
    train_once(ddp, {{0, coefficient_of(communicator)}});
    return gradients(*bank);
  });
  EXPECT_THAT(results[0], ElementsAre(1.0, kNone));
  EXPECT_THAT(results[1], ElementsAre(2.0, kNone));
}

// Runs a backward of its own inside backward, as re-entrant recomputation does.
class Recompute : public torch::autograd::Function<Recompute> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight) {
    context->saved_data["weight"] = weight;
    context->save_for_backward({input});
    return input * weight.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::AutoGradMode grad(true);
    const at::Tensor input = context->get_saved_variables()[0].detach().requires_grad_();
    const at::Tensor weight = context->saved_data["weight"].toTensor();
    (input * weight).backward(gradients[0]);
    return {input.grad(), at::Tensor()};
  }
};

// `scale` is ready last and so keeps the bucket open while `weight` is ready twice.
struct TwiceImpl : torch::nn::Module {
  TwiceImpl()
      : weight(register_parameter("weight", torch::ones({1}))),
        scale(register_parameter("scale", torch::ones({1}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return Recompute::apply(Recompute::apply(x * scale, weight), weight).sum();
  }
  at::Tensor weight, scale;
};

TEST(ReducerTest, AParameterThatIsReadyTwiceIsNamed) {
  for (const bool static_graph : {false, true}) {
    const auto outcomes = try_run_ranks(1, [&](LocalCommunicator& communicator) {
      const auto module = std::make_shared<TwiceImpl>();
      DdpOptions options;
      options.static_graph = static_graph;
      DistributedDataParallel<TwiceImpl> ddp(module, communicator, options);
      for (int step = 0; step < 4; ++step) {
        ddp(torch::ones({1}, at::requires_grad())).backward();
      }
      return module->weight.grad().item<double>();
    });
    if (static_graph) {
      ASSERT_TRUE(outcomes[0].value.has_value());
      EXPECT_EQ(*outcomes[0].value, 8.0);  // 2 per step
    } else {
      const auto error = outcomes[0].error_as<DdpError>();
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->kind(), "ready_twice");
      EXPECT_THAT(error->parameters(), ElementsAre("weight"));
    }
  }
}

// Rank 1 leaves before backward; rank 0 fails inside backward, then at the next forward.
TEST(ReducerTest, AFailedCollectiveComesOutOfBackwardAndLeavesTheReductionUnfinished) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator);
    std::vector<std::string> seen;
    if (communicator.rank() == 1) {
      return seen;
    }
    try {
      train_once(ddp, all_terms(2));
    } catch (const PeerLost&) {
      seen.emplace_back("peer lost");
    }
    seen.emplace_back(ddp.engine().state().unfinished ? "unfinished" : "finished");
    try {
      ddp(all_terms(2));
    } catch (const DdpError& error) {
      seen.emplace_back(error.kind());
    }
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre("peer lost", "unfinished", "reduction_unfinished"));
}

TEST(ReducerTest, StateNamesWhatIsNotReady) {
  const auto results = run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(3);
    BankDdp ddp(bank.ptr(), communicator);
    std::vector<ReducerState> states = {ddp.engine().state()};
    const at::Tensor loss = ddp(std::vector<Term>{{0}, {2}});
    states.push_back(ddp.engine().state());
    loss.backward();
    states.push_back(ddp.engine().state());
    return states;
  });
  const auto& states = results[0];
  EXPECT_FALSE(states[0].armed);
  EXPECT_THAT(states[0].not_ready, IsEmpty());
  EXPECT_EQ(states[0].num_buckets, 1);
  EXPECT_TRUE(states[1].armed);
  EXPECT_FALSE(states[1].unfinished);
  EXPECT_THAT(states[1].not_ready, ElementsAre(0, 1, 2));
  EXPECT_TRUE(states[2].unfinished);
  EXPECT_EQ(states[2].next_bucket, 0);
  EXPECT_THAT(states[2].not_ready, ElementsAre(1));
}

TEST(ReducerTest, DtypesHaveTheirOwnBucketsAndCollectives) {
  struct MixedImpl : torch::nn::Module {
    MixedImpl()
        : a(register_parameter("a", torch::ones({2}))),
          b(register_parameter("b", torch::ones({3}, at::kDouble))),
          c(register_parameter("c", torch::ones({1}))) {}
    at::Tensor forward(double k) {
      return (a * k).sum().to(at::kDouble) + (b * k).sum() + (c * k).sum().to(at::kDouble);
    }
    at::Tensor a, b, c;
  };
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<MixedImpl>();
    DistributedDataParallel<MixedImpl> ddp(module, communicator);
    communicator.clear_log();
    ddp(coefficient_of(communicator)).backward();
    std::vector<std::string> log;
    for (const CollectiveRecord& record : communicator.log()) {
      log.push_back(to_string(record));
    }
    log.push_back(std::to_string(module->b.grad()[0].item<double>()));
    return log;
  });
  EXPECT_THAT(results[0], ElementsAre("all_reduce bucket 0 step 0: 3 Double",
                                      "all_reduce bucket 1 step 0: 3 Float", "1.500000"));
}

TEST(ReducerTest, HalfPrecisionIsDividedBeforeTheSum) {
  const auto results = run_ranks(4, [](LocalCommunicator& communicator) {
    ParameterBank bank(std::vector<std::vector<std::int64_t>>{{1}}, at::kHalf);
    BankDdp ddp(bank.ptr(), communicator);
    train_once(ddp, {{0, 30000.0}});  // four of them exceed the largest half, 65504
    return gradients(*bank);
  });
  EXPECT_THAT(results[0], ElementsAre(at::Half(30000.0F)));
}

}  // namespace
}  // namespace lockstep::test
