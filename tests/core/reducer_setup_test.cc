// SPDX-License-Identifier: Apache-2.0
// The reducer outside backward: hooks, rebuilt buckets, gradients that are views.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>
#include <torch/types.h>

#include "core/error.h"
#include "core/reducer.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ReducerSetupTest, BucketsAreRebuiltOnceInTheOrderOfRankZero) {
  struct Seen {
    std::vector<std::vector<std::int64_t>> first, rebuilt, last;
    std::vector<std::int64_t> rebuilds;
    std::int64_t broadcasts = 0;
    double gradient = 0.0;
  };
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(4);
    EventLog events;
    DdpOptions options;
    options.first_bucket_cap_bytes = 4;
    options.bucket_cap_bytes = 8;
    options.observer = &events;
    BankDdp ddp(bank.ptr(), communicator, options);
    Seen seen;
    seen.first = ddp.engine().bucket_layout()->buckets;
    // Ready order 1, 3, 0, 2 on rank 0 and 0, 1, 2, 3 on rank 1.
    train_once(ddp, communicator.rank() == 0 ? std::vector<Term>{{2}, {0}, {3}, {1}}
                                             : std::vector<Term>{{3}, {2}, {1}, {0}});
    train_once(ddp, all_terms(4));
    seen.rebuilt = ddp.engine().bucket_layout()->buckets;
    clear_gradients(*bank);
    train_once(ddp, all_terms(4, static_cast<double>(communicator.rank())));
    seen.last = ddp.engine().bucket_layout()->buckets;
    seen.rebuilds = events.indices_of(EventKind::kRebuilt);
    seen.broadcasts =
        communicator.count(CallSite::kRebuildOrder) + communicator.count(CallSite::kRebuildSizes);
    seen.gradient = gradients(*bank)[3];
    return seen;
  });
  for (const Seen& seen : results) {
    EXPECT_THAT(seen.first, ElementsAre(ElementsAre(0, 1, 2, 3)));
    // Caps 4, then 8: {1}, {3, 0}, and 2 left over.
    EXPECT_THAT(seen.rebuilt, ElementsAre(ElementsAre(1), ElementsAre(3, 0), ElementsAre(2)));
    EXPECT_EQ(seen.last, seen.rebuilt);
    EXPECT_THAT(seen.rebuilds, ElementsAre(3));
    EXPECT_EQ(seen.broadcasts, 2);
    EXPECT_EQ(seen.gradient, 0.5);
  }
}

TEST(ReducerSetupTest, BucketsAreNeverRebuiltWithFindUnused) {
  const auto results = run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(3);
    DdpOptions options;
    options.find_unused_parameters = true;
    options.first_bucket_cap_bytes = 4;
    options.bucket_cap_bytes = 8;
    BankDdp ddp(bank.ptr(), communicator, options);
    for (int step = 0; step < 3; ++step) {
      train_once(ddp, {{2}, {1}, {0}});
    }
    return ddp.engine().bucket_layout()->buckets;
  });
  EXPECT_THAT(results[0], ElementsAre(ElementsAre(1, 2), ElementsAre(0)));
}

TEST(ReducerSetupTest, APendingRebuildTakesPlaceUnderNoSyncButNotWithoutGradients) {
  const auto results = run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    EventLog events;
    DdpOptions options = one_parameter_per_bucket();
    options.observer = &events;
    BankDdp ddp(bank.ptr(), communicator, options);
    train_once(ddp, all_terms(2));
    std::vector<std::int64_t> rebuilt;
    {
      const at::NoGradGuard no_grad;
      ddp(all_terms(2));
    }
    rebuilt.push_back(static_cast<std::int64_t>(events.indices_of(EventKind::kRebuilt).size()));
    ddp.no_sync([&] { ddp(all_terms(2)); });
    rebuilt.push_back(static_cast<std::int64_t>(events.indices_of(EventKind::kRebuilt).size()));
    return rebuilt;
  });
  EXPECT_THAT(results[0], ElementsAre(0, 1));
}

TEST(ReducerSetupTest, BackwardsUnderNoSyncAreNotRecorded) {
  const auto results = run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator, one_parameter_per_bucket());
    ddp.no_sync([&] { train_once(ddp, {{1}, {0}}); });
    train_once(ddp, {{0}, {1}});
    ddp(all_terms(2));
    return ddp.engine().bucket_layout()->buckets;
  });
  EXPECT_THAT(results[0], ElementsAre(ElementsAre(1), ElementsAre(0)));
}

TEST(ReducerSetupTest, DestructionRemovesTheHooksSoThatASecondWrapperWorks) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    const auto mine = static_cast<double>(communicator.rank());
    {
      BankDdp failed(bank.ptr(), communicator);
      train_once(failed, {{0, mine}});  // incomplete: unfinished for ever
    }
    const std::int64_t before = static_cast<std::int64_t>(communicator.log().size());
    clear_gradients(*bank);
    bank->forward(all_terms(2, mine)).backward();
    const std::int64_t after = static_cast<std::int64_t>(communicator.log().size());
    clear_gradients(*bank);
    BankDdp second(bank.ptr(), communicator);
    train_once(second, all_terms(2, mine));
    train_once(second, all_terms(2, 0.0));
    return std::make_pair(after - before, gradients(*bank));
  });
  for (const auto& [collectives, averages] : results) {
    EXPECT_EQ(collectives, 0);
    EXPECT_THAT(averages, ElementsAre(0.5, 0.5));
  }
}

TEST(ReducerSetupTest, AWrapperDestroyedBeforeBackwardLeavesTheGraphUsable) {
  const auto results = run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    at::Tensor loss;
    {
      DdpOptions options;
      options.find_unused_parameters = true;
      BankDdp ddp(bank.ptr(), communicator, options);
      loss = ddp(all_terms(2));
    }
    loss.backward();
    return gradients(*bank);
  });
  EXPECT_THAT(results[0], ElementsAre(1.0, 1.0));
}

TEST(ReducerSetupTest, RejectsParametersThatCannotBeReduced) {
  run_ranks(1, [](LocalCommunicator& communicator) {
    const at::Tensor good = torch::ones({1}, at::requires_grad());
    const auto make = [&](const std::vector<at::Tensor>& parameters, const DdpOptions& options) {
      const std::vector<std::string> names(parameters.size(), "p");
      const Reducer reducer(parameters, names, communicator, options);
    };
    EXPECT_NO_THROW(make({good}, {}));
    EXPECT_THROW(make({}, {}), UsageError);
    EXPECT_THROW(make({good, good}, {}), UsageError);
    EXPECT_THROW(make({torch::ones({1})}, {}), UsageError);
    EXPECT_THROW(make({torch::eye(2).to_sparse().requires_grad_()}, {}), UsageError);
    DdpOptions no_cap;
    no_cap.bucket_cap_bytes = 0;
    EXPECT_THROW(make({good}, no_cap), UsageError);
  });
}

// View mode.

DdpOptions as_views() {
  DdpOptions options = one_parameter_per_bucket();
  options.gradient_as_bucket_view = true;
  return options;
}

TEST(ReducerSetupTest, GradientsBecomeViewsAtTheFirstReductionAndMoveAtTheRebuild) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank(std::vector<std::vector<std::int64_t>>{{2}, {3}});
    BankDdp ddp(bank.ptr(), communicator, as_views());
    const auto share_storage = [&] {
      return bank->parameter(0).grad().is_alias_of(bank->parameter(1).grad());
    };
    std::vector<bool> seen = {bank->parameter(0).grad().defined()};
    train_once(ddp, all_terms(2, 2.0));
    seen.push_back(share_storage());  // one bucket
    const at::Tensor stale = bank->parameter(0).grad();
    ddp(all_terms(2));  // rebuilds: one bucket each, values preserved
    seen.push_back(share_storage());
    seen.push_back(bank->parameter(0).grad().is_alias_of(stale));
    seen.push_back(gradients(*bank) == std::vector<double>{2.0, 2.0});
    return seen;
  });
  for (const auto& seen : results) {
    EXPECT_THAT(seen, ElementsAre(false, true, false, false, true));
  }
}

TEST(ReducerSetupTest, ZeroingInPlaceKeepsTheViewAndUndefiningBreaksItForOneStep) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator, as_views());
    const auto mine = static_cast<double>(2 * communicator.rank() + 1);  // 1, 3
    train_once(ddp, all_terms(2, mine));
    train_once(ddp, all_terms(2, mine));  // 2 + 2
    std::vector<double> seen = gradients(*bank);
    const at::Tensor view = bank->parameter(0).grad();
    bank->zero_grad(/*set_to_none=*/false);  // LibTorch 2 has another default
    seen.push_back(bank->parameter(0).grad().is_alias_of(view) ? 1 : 0);
    train_once(ddp, all_terms(2, mine));
    seen.push_back(gradients(*bank)[0]);
    seen.push_back(bank->parameter(0).grad().is_alias_of(view) ? 1 : 0);
    clear_gradients(*bank);
    train_once(ddp, all_terms(2, mine));
    seen.push_back(gradients(*bank)[0]);
    seen.push_back(bank->parameter(0).grad().is_alias_of(view) ? 1 : 0);
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre(4, 4, 1, 2, 1, 2, 1));
}

TEST(ReducerSetupTest, AViewCannotBeDetachedInPlace) {
  run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator, as_views());
    train_once(ddp, all_terms(1));
    torch::optim::SGD optimizer(bank->parameters(), 0.1);
    EXPECT_THROW(optimizer.zero_grad(), c10::Error);
  });
}

// Replaces `.grad` of one parameter once another one's gradient is ready.
class Replacer : public Observer {
 public:
  void on_event(const Event& event) override {
    if (event.kind == EventKind::kGradientReady && event.index == 0 && target.defined()) {
      target.mutable_grad() = at::ones_like(target);
    }
  }
  at::Tensor target;
};

TEST(ReducerSetupTest, AGradientReplacedBetweenHookAndEndOfBackwardIsNamed) {
  const auto outcomes = try_run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    Replacer replacer;
    DdpOptions options = as_views();
    options.observer = &replacer;
    BankDdp ddp(bank.ptr(), communicator, options);
    replacer.target = bank->parameter(1);  // ready before 0
    train_once(ddp, all_terms(2));
  });
  const auto error = outcomes[0].error_as<DdpError>();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), "not_a_bucket_view");
  EXPECT_THAT(error->parameters(), ElementsAre("p1"));
}

TEST(ReducerSetupTest, CopyAndViewModesGiveTheSameBitsWhereDivisionIsExact) {
  const auto run = [](bool as_view) {
    return run_ranks(4, [&](LocalCommunicator& communicator) {
      torch::nn::Sequential model(torch::nn::Linear(3, 5), torch::nn::Tanh(),
                                  torch::nn::Linear(5, 2));
      {
        // LibTorch's generator is shared by all rank threads: no use for repeatable values.
        const at::NoGradGuard no_grad;
        for (at::Tensor& parameter : model->parameters()) {
          parameter.copy_(at::linspace(-1, 1, parameter.numel()).view(parameter.sizes()));
        }
      }
      DdpOptions options = one_parameter_per_bucket();
      options.gradient_as_bucket_view = as_view;
      DistributedDataParallel<torch::nn::SequentialImpl> ddp(model.ptr(), communicator, options);
      std::vector<at::Tensor> seen;
      for (int step = 0; step < 3; ++step) {
        const at::Tensor x = at::arange(6, at::kFloat).view({2, 3}) / 7 +
                             static_cast<double>(communicator.rank()) + step;
        ddp(x).square().mean().backward();
        for (const at::Tensor& parameter : model->parameters()) {
          seen.push_back(parameter.grad().clone());
        }
      }
      return seen;
    });
  };
  const auto copies = run(false);
  const auto views = run(true);
  for (std::size_t rank = 0; rank < copies.size(); ++rank) {
    for (std::size_t i = 0; i < copies[rank].size(); ++i) {
      EXPECT_TRUE(copies[rank][i].equal(views[rank][i]));
      EXPECT_TRUE(copies[rank][i].equal(copies[0][i]));
    }
  }
}

TEST(ReducerSetupTest, ChannelsLastGradientsKeepTheirLayout) {
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 4, 3));
      conv->weight.set_data(conv->weight.to(at::MemoryFormat::ChannelsLast));
      DdpOptions options;
      options.gradient_as_bucket_view = as_view;
      DistributedDataParallel<torch::nn::Conv2dImpl> ddp(conv.ptr(), communicator, options);
      std::vector<bool> same;
      for (int step = 0; step < 2; ++step) {
        const at::Tensor x = at::ones({1, 3, 5, 5}).to(at::MemoryFormat::ChannelsLast);
        ddp(x).sum().backward();
        same.push_back(conv->weight.grad().strides() == conv->weight.strides());
      }
      // Every weight meets 9 ones per step, on each rank.
      same.push_back(conv->weight.grad().eq(18.0).all().item<bool>());
      return same;
    });
    EXPECT_THAT(results[0], ElementsAre(true, true, true));
  }
}

}  // namespace
}  // namespace lockstep::test
