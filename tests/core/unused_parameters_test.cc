// SPDX-License-Identifier: Apache-2.0
// find_unused_parameters: traversal, and the local and global rules.
#include "core/unused_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "core/error.h"
#include "core/reducer.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

DdpOptions find_unused(bool as_view = false) {
  DdpOptions options = one_parameter_per_bucket();
  options.find_unused_parameters = true;
  options.gradient_as_bucket_view = as_view;
  return options;
}

TEST(UnusedParametersTest, TraversalFindsWhatTheOutputsDoNotReach) {
  std::vector<at::Tensor> leaves;
  std::vector<compat::NodePtr> keep;
  AccumulatorIndex index;
  for (std::int64_t i = 0; i < 4; ++i) {
    leaves.push_back(torch::ones({1}, at::requires_grad()));
    keep.push_back(torch::autograd::impl::grad_accumulator(leaves.back()));
    index[keep.back().get()] = i;
  }
  at::Tensor product = leaves[0] * leaves[2];
  at::Tensor detached = leaves[1].detach() * 2;
  at::Tensor undefined;
  EXPECT_THAT(search_unused_parameters({&product, &detached, &undefined}, index),
              ElementsAre(1, 3));
  EXPECT_THAT(search_unused_parameters({&product, &leaves[3]}, index), ElementsAre(1));
  EXPECT_THAT(search_unused_parameters({}, index), ElementsAre(0, 1, 2, 3));
}

// 0: used by all; 1: used by rank 1 only; 2: used by none.
TEST(UnusedParametersTest, UsedSomewhereIsAveragedAndUsedNowhereIsLeftAlone) {
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(3);
      BankDdp ddp(bank.ptr(), communicator, find_unused(as_view));
      std::vector<double> seen;
      for (int step = 0; step < 3; ++step) {
        clear_gradients(*bank);
        train_once(ddp, communicator.rank() == 0 ? std::vector<Term>{{0, 2.0}}
                                                 : std::vector<Term>{{0, 4.0}, {1, 8.0}});
        const auto now = gradients(*bank);
        seen.insert(seen.end(), now.begin(), now.end());
      }
      return seen;
    });
    for (const auto& seen : results) {
      EXPECT_THAT(seen, ElementsAre(3, 4, kNone, 3, 4, kNone, 3, 4, kNone));
    }
  }
}

TEST(UnusedParametersTest, TheMapIsReducedAfterAllBucketsAndCountsRanks) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(3);
    Reducer reducer(bank->parameters(), {"p0", "p1", "p2"}, communicator, find_unused());
    at::Tensor loss = bank->forward(communicator.rank() == 0 ? std::vector<Term>{{0}}
                                                             : std::vector<Term>{{0}, {1}});
    reducer.arm({&loss});
    loss.backward();
    std::vector<std::string> sites;
    for (const CollectiveRecord& record : communicator.log()) {
      sites.emplace_back(to_string(record));
    }
    return std::make_pair(reducer.ranks_using(), sites);
  });
  for (const auto& [counts, sites] : results) {
    EXPECT_THAT(counts, ElementsAre(2, 1, 0));
    EXPECT_THAT(sites, ElementsAre("all_reduce bucket 0 step -1: 1 Float",
                                   "all_reduce bucket 1 step -1: 1 Float",
                                   "all_reduce bucket 2 step -1: 1 Float",
                                   "all_reduce used_map -1 step -1: 3 Int"));
  }
}

TEST(UnusedParametersTest, AnOldGradientOfAGloballyUnusedParameterKeepsItsBits) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator, find_unused());
    bank->parameter(1).mutable_grad() =
        at::full({1}, 7.0 + static_cast<double>(communicator.rank()));
    train_once(ddp, {{0}});
    return gradients(*bank);
  });
  EXPECT_THAT(results[0], ElementsAre(1, 7));
  EXPECT_THAT(results[1], ElementsAre(1, 8));
}

TEST(UnusedParametersTest, AnOldGradientIsThisRanksContributionWhereAnotherRankUsesTheParameter) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator, find_unused());
    if (communicator.rank() == 0) {
      bank->parameter(1).mutable_grad() = at::full({1}, 6.0);
      train_once(ddp, {{0}});
    } else {
      train_once(ddp, {{0}, {1, 2.0}});
    }
    return gradients(*bank);
  });
  EXPECT_THAT(results[0], ElementsAre(1, 4));
  EXPECT_THAT(results[1], ElementsAre(1, 4));
}

// The used map must cover the whole accumulation window (H8, H9).
TEST(UnusedParametersTest, AParameterUsedOnlyUnderNoSyncIsStillAveraged) {
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(2);
      BankDdp ddp(bank.ptr(), communicator, find_unused(as_view));
      std::vector<double> seen;
      for (int window = 0; window < 2; ++window) {
        clear_gradients(*bank);
        ddp.no_sync([&] {
          train_once(ddp, {{0}, {1, static_cast<double>(2 * communicator.rank())}});
        });
        train_once(ddp, {{0}});
        const auto now = gradients(*bank);
        seen.insert(seen.end(), now.begin(), now.end());
      }
      clear_gradients(*bank);
      train_once(ddp, {{0}});  // the map starts anew
      const auto now = gradients(*bank);
      seen.insert(seen.end(), now.begin(), now.end());
      return seen;
    });
    for (const auto& seen : results) {
      EXPECT_THAT(seen, ElementsAre(2, 1, 2, 1, 1, kNone));
    }
  }
}

// A script may give up a window, for what it found in it; that is no use of what the next leaves
// out.
TEST(UnusedParametersTest, AWindowThatWasGivenUpCountsOnNoRankThatResetItsGradients) {
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(3);
      BankDdp ddp(bank.ptr(), communicator, find_unused(as_view));
      ddp.no_sync([&] { train_once(ddp, {{0}, {1, 4}, {2, 2}}); });
      if (communicator.rank() == 0) {
        clear_gradients(*bank);
      } else {
        bank->parameters()[2].mutable_grad().reset();
      }
      train_once(ddp, {{0}});
      return gradients(*bank);
    });
    for (const auto& seen : results) {
      EXPECT_THAT(seen, ElementsAre(1.5, 2, kNone));
    }
  }
}

struct ProductImpl : torch::nn::Module {
  ProductImpl()
      : a(register_parameter("a", torch::ones({1}))),
        b(register_parameter("b", torch::ones({1}))) {}
  at::Tensor forward(double k) { return (a * k) * b; }
  at::Tensor a, b;
};

// The first iteration of a static graph reduces at the end of backward (L3).
TEST(UnusedParametersTest, AGradientResetBeforeTheEndOfBackwardIsNamed) {
  const auto outcomes = try_run_ranks(1, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<ProductImpl>();
    DdpOptions options;
    options.static_graph = true;
    DistributedDataParallel<ProductImpl> ddp(module, communicator, options);
    module->a.register_hook([&module](const at::Tensor& gradient) {
      module->b.mutable_grad().reset();  // a's gradient comes after b's
      return gradient;
    });
    ddp.forward(2.0).sum().backward();
  });
  const auto error = outcomes[0].error_as<DdpError>();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), "undefined_gradient");
  EXPECT_THAT(error->parameters(), ElementsAre("b"));
}

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl()
      : a(register_parameter("a", torch::ones({1}))),
        b(register_parameter("b", torch::ones({1}))) {}
  std::tuple<at::Tensor, at::Tensor> forward(double k) { return {a * k, b * k}; }
  at::Tensor a, b;
};

TEST(UnusedParametersTest, AnOutputOutsideTheLossLeavesItsParametersAlone) {
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      const auto module = std::make_shared<TwoHeadsImpl>();
      DistributedDataParallel<TwoHeadsImpl> ddp(module, communicator, find_unused(as_view));
      std::vector<double> seen;
      for (int step = 0; step < 3; ++step) {
        clear_gradients(*module);
        auto [first, second] = ddp(static_cast<double>(communicator.rank() + 1));
        first.mul_(2);  // in place: the sink's clone is ours to change
        first.sum().backward();
        seen.push_back(module->a.grad().item<double>());
        seen.push_back(module->b.grad().defined() ? 1 : 0);
      }
      return seen;
    });
    for (const auto& seen : results) {
      EXPECT_THAT(seen, ElementsAre(3, 0, 3, 0, 3, 0));
    }
  }
}

TEST(UnusedParametersTest, ARankThatUsesNothingStillTakesPart) {
  for (const bool static_graph : {false, true}) {
    for (const bool as_view : {false, true}) {
      const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
        ParameterBank bank = scalar_bank(3);
        DdpOptions options = find_unused(as_view);
        options.static_graph = static_graph;
        BankDdp ddp(bank.ptr(), communicator, options);
        std::vector<double> seen;
        for (int step = 0; step < 4; ++step) {
          clear_gradients(*bank);
          train_once(ddp, communicator.rank() == 0 ? std::vector<Term>{}
                                                   : std::vector<Term>{{0, 2.0}, {1, 4.0}});
          const auto now = gradients(*bank);
          seen.insert(seen.end(), now.begin(), now.end());
        }
        return seen;
      });
      for (const auto& seen : results) {
        EXPECT_THAT(seen, ElementsAre(1, 2, kNone, 1, 2, kNone, 1, 2, kNone, 1, 2, kNone));
      }
    }
  }
}

struct PassThroughImpl : torch::nn::Module {
  PassThroughImpl() : weight(register_parameter("weight", torch::ones({2}))) {}
  std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    return {weight, x, at::ones({1})};
  }
  at::Tensor weight;
};

TEST(UnusedParametersTest, AParameterThatIsItselfAnOutputCountsAsUsed) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<PassThroughImpl>();
    DistributedDataParallel<PassThroughImpl> ddp(module, communicator, find_unused());
    const at::Tensor x = at::ones({2});
    std::vector<double> seen;
    auto [weight, same_x, fresh] = ddp(x);
    (weight * static_cast<double>(communicator.rank() + 1)).sum().backward();
    seen.push_back(module->weight.grad()[0].item<double>());
    seen.push_back(same_x.is_same(x) ? 1 : 0);
    seen.push_back(fresh.requires_grad() ? 1 : 0);
    // Outside the loss it is left alone.
    clear_gradients(*module);
    auto outputs = ddp(at::ones({2}, at::requires_grad()));
    (std::get<0>(outputs).sum() * 0 + std::get<1>(outputs).sum()).backward();
    seen.push_back(module->weight.grad()[0].item<double>());
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre(1.5, 1, 0, 0));
}

TEST(UnusedParametersTest, AUsedSetThatChangesEveryStepAndDiffersByRankIsFine) {
  const auto results = run_ranks(4, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(4);
    BankDdp ddp(bank.ptr(), communicator, find_unused());
    std::vector<double> seen;
    for (std::int64_t step = 0; step < 4; ++step) {
      clear_gradients(*bank);
      train_once(ddp, {{(communicator.rank() + step) % 4, 4.0}});
      const auto now = gradients(*bank);
      seen.insert(seen.end(), now.begin(), now.end());
    }
    return seen;
  });
  for (const auto& seen : results) {
    EXPECT_THAT(seen, Each(1.0));  // each parameter is used by one of four ranks
  }
}

// The second output defines the unused set; what only the first used is ready twice (E13).
TEST(UnusedParametersTest, TwoForwardsWithDifferentUsedSetsAreRefused) {
  const auto outcomes = try_run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator, find_unused());
    const at::Tensor first = ddp(std::vector<Term>{{0}});
    const at::Tensor second = ddp(std::vector<Term>{{1}});
    (first + second).backward();
  });
  const auto error = outcomes[0].error_as<DdpError>();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), "ready_twice");
  EXPECT_THAT(error->parameters(), ElementsAre("p0"));
}

}  // namespace
}  // namespace lockstep::test
