// SPDX-License-Identifier: Apache-2.0
// What surrounds the reducer: construction, no_sync, buffers, steps.
#include "core/ddp_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "core/error.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A linear layer twice under two names, a frozen layer, a buffer.
struct SharedImpl : torch::nn::Module {
  SharedImpl() {
    first = register_module("first", torch::nn::Linear(2, 2));
    tied = register_module("tied", torch::nn::Linear(2, 2));
    tied->weight = tied->register_parameter("alias", first->weight);
    frozen = register_module("frozen", torch::nn::Linear(2, 1));
    frozen->weight.requires_grad_(false);
    scale = register_buffer("scale", torch::ones({1}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return frozen(torch::linear(first(x), first->weight, tied->bias)) * scale;
  }
  torch::nn::Linear first{nullptr}, tied{nullptr}, frozen{nullptr};
  at::Tensor scale;
};

using SharedDdp = DistributedDataParallel<SharedImpl>;

void fill(torch::nn::Module& module, double value) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& tensor : module.parameters()) {
    tensor.fill_(value);
  }
  for (at::Tensor& tensor : module.buffers()) {
    tensor.fill_(value);
  }
}

TEST(DdpEngineTest, ParametersComeInDeclarationOrderOnceAndOnlyIfTrainable) {
  const auto names = run_ranks(1, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<SharedImpl>();
    const SharedDdp ddp(module, communicator);
    return ddp.engine().parameter_names();
  });
  // tied.weight is a parameter of its own that forward does not use; tied.alias is first.weight.
  EXPECT_THAT(names[0],
              ElementsAre("first.weight", "first.bias", "tied.weight", "tied.bias", "frozen.bias"));
}

TEST(DdpEngineTest, ConstructionVerifiesThenBroadcastsParametersFrozenOnesAndBuffers) {
  for (const bool broadcast_buffers : {true, false}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      const auto module = std::make_shared<SharedImpl>();
      fill(*module, static_cast<double>(communicator.rank() + 1));
      DdpOptions options;
      options.broadcast_buffers = broadcast_buffers;
      const SharedDdp ddp(module, communicator, options);
      std::vector<std::string> sites;
      for (const CollectiveRecord& record : communicator.log()) {
        sites.emplace_back(lockstep::to_string(record.tag.site));
      }
      return std::make_tuple(sites, module->frozen->weight[0][0].item<double>(),
                             module->first->bias[0].item<double>(), module->scale.item<double>());
    });
    const auto& [sites, frozen, bias, scale] = results[1];
    EXPECT_THAT(sites, ElementsAre("param_count", "param_shapes", "module_states"));
    EXPECT_EQ(frozen, 1);
    EXPECT_EQ(bias, 1);
    EXPECT_EQ(scale, broadcast_buffers ? 1 : 2);
  }
}

TEST(DdpEngineTest, WithoutInitialSyncConstructionIssuesNothing) {
  const auto collectives = run_ranks(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<SharedImpl>();
    DdpOptions options;
    options.init_sync = false;
    const SharedDdp ddp(module, communicator, options);
    return communicator.log().size();
  });
  EXPECT_THAT(collectives, ElementsAre(0, 0));
}

TEST(DdpEngineTest, IgnoredTensorsAreNeitherVerifiedNorBroadcastNorReduced) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    const std::int64_t rank = communicator.rank();
    ParameterBank bank(std::vector<std::vector<std::int64_t>>{{1}, {rank + 2}});
    fill(*bank, static_cast<double>(rank));
    DdpOptions options;
    options.ignored = {"p1"};
    BankDdp ddp(bank.ptr(), communicator, options);
    train_once(ddp, all_terms(2, static_cast<double>(rank)));
    std::vector<double> seen = gradients(*bank);
    seen.push_back(bank->parameter(0)[0].item<double>());
    seen.push_back(bank->parameter(1)[0].item<double>());
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre(0.5, 0, 0, 0));
  EXPECT_THAT(results[1], ElementsAre(0.5, 1, 0, 1));
}

template <typename M>
std::string refusal(const std::shared_ptr<M>& module, const DdpOptions& options = {}) {
  const auto outcomes = try_run_ranks(1, [&](LocalCommunicator& communicator) {
    const DistributedDataParallel<M> ddp(module, communicator, options);
  });
  const auto error = outcomes[0].template error_as<UsageError>();
  return error.has_value() ? error->what() : "accepted";
}

TEST(DdpEngineTest, RefusesWhatItCannotWrapBeforeAnyCollective) {
  ParameterBank frozen = scalar_bank(1);
  frozen->parameter(0).requires_grad_(false);
  EXPECT_THAT(refusal(frozen.ptr()), HasSubstr("no parameter that requires a gradient"));
  DdpOptions typo;
  typo.ignored = {"p7"};
  EXPECT_THAT(refusal(scalar_bank(1).ptr(), typo), HasSubstr("'p7'"));
}

TEST(DdpEngineTest, DifferentModelsAreRefusedOnEveryRank) {
  const auto outcomes = try_run_ranks(3, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(communicator.rank() == 1 ? 3 : 2);
    const BankDdp ddp(bank.ptr(), communicator);
  });
  for (const auto& outcome : outcomes) {
    const auto error = outcome.error_as<DdpError>();
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->kind(), "model_mismatch");
  }
}

// no_sync.

// Sums of two micro-batches, 1 + 3 on rank 0 and 2 + 4 on rank 1; mean of the sums 5.
TEST(DdpEngineTest, NoSyncAccumulatesAndTheNextBackwardReducesTheSum) {
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(2);
      DdpOptions options;
      options.gradient_as_bucket_view = as_view;
      BankDdp ddp(bank.ptr(), communicator, options);
      const auto rank = static_cast<double>(communicator.rank());
      std::vector<double> seen;
      for (int window = 0; window < 3; ++window) {
        bank->zero_grad();
        communicator.clear_log();
        {
          const NoSyncGuard guard = ddp.no_sync();
          train_once(ddp, all_terms(2, rank + 1));
        }
        seen.push_back(gradients(*bank)[0]);
        seen.push_back(static_cast<double>(communicator.count(CallSite::kBucket)));
        train_once(ddp, all_terms(2, rank + 3));
        seen.push_back(gradients(*bank)[0]);
      }
      return seen;
    });
    EXPECT_THAT(results[0], ElementsAre(1, 0, 5, 1, 0, 5, 1, 0, 5));
    EXPECT_THAT(results[1], ElementsAre(2, 0, 5, 2, 0, 5, 2, 0, 5));
  }
}

TEST(DdpEngineTest, NoSyncIsDecidedByTheForward) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    const auto mine = static_cast<double>(2 * communicator.rank() + 1);  // 1, 3
    std::vector<double> seen;
    const at::Tensor outside = ddp(all_terms(1, mine));
    ddp.no_sync([&] { outside.backward(); });
    seen.push_back(gradients(*bank)[0]);
    clear_gradients(*bank);
    at::Tensor inside;
    ddp.no_sync([&] { inside = ddp(all_terms(1, mine)); });
    inside.backward();
    seen.push_back(gradients(*bank)[0]);
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre(2, 1));
  EXPECT_THAT(results[1], ElementsAre(2, 3));
}

TEST(DdpEngineTest, NoSyncNestsAndIsRestoredByExceptions) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    const auto synchronizes = [&] {
      clear_gradients(*bank);
      train_once(ddp, all_terms(1, static_cast<double>(communicator.rank())));
      return gradients(*bank)[0] == 0.5;
    };
    std::vector<bool> seen;
    {
      const NoSyncGuard outer = ddp.no_sync();
      { const NoSyncGuard inner = ddp.no_sync(); }
      seen.push_back(synchronizes());
    }
    seen.push_back(synchronizes());
    try {
      ddp.no_sync([] { throw std::runtime_error("planned"); });
    } catch (const std::runtime_error&) {
    }
    seen.push_back(synchronizes());
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre(false, true, true));
}

TEST(DdpEngineTest, TheInnerModuleBypassesSynchronisation) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    const auto mine = static_cast<double>(communicator.rank());
    ddp.module().forward(all_terms(1, mine)).backward();
    std::vector<double> seen = gradients(*bank);
    train_once(ddp, all_terms(1, mine));
    seen.push_back(gradients(*bank)[0]);
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre(0, 1));
  EXPECT_THAT(results[1], ElementsAre(1, 1));
}

// The reducer stays armed until something is reduced (E14).
TEST(DdpEngineTest, AnUnusedSynchronisedForwardArmsTheNextBackward) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    ddp(all_terms(1));
    ddp.no_sync([&] { train_once(ddp, all_terms(1, static_cast<double>(communicator.rank()))); });
    return gradients(*bank);
  });
  EXPECT_THAT(results[1], ElementsAre(0.5));
}

// Buffers.

struct BufferedImpl : torch::nn::Module {
  BufferedImpl()
      : weight(register_parameter("weight", torch::ones({2}))),
        factor(register_buffer("factor", torch::ones({2}))) {}
  at::Tensor forward() { return (weight * factor).sum(); }
  at::Tensor weight, factor;
};

using BufferedDdp = DistributedDataParallel<BufferedImpl>;

struct BufferRun {
  std::shared_ptr<BufferedImpl> module = std::make_shared<BufferedImpl>();
  std::vector<bool> synced;

  /// Makes the buffers differ, calls `forward`, notes whether they agree again.
  void observe(LocalCommunicator& communicator, const std::function<void()>& forward) {
    {
      const at::NoGradGuard no_grad;
      module->factor.fill_(static_cast<double>(10 + communicator.rank()));
    }
    forward();
    synced.push_back(module->factor[0].item<double>() == 10.0);
  }
};

TEST(DdpEngineTest, BuffersFollowRankZeroUnlessThePreviousForwardDidNotSynchronise) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    BufferRun run;
    BufferedDdp ddp(run.module, communicator);
    const auto train = [&] { ddp().backward(); };
    const auto evaluate = [&] {
      const at::NoGradGuard no_grad;
      ddp();
    };
    const auto accumulate = [&] { ddp.no_sync([&] { ddp().backward(); }); };
    run.observe(communicator, train);       // initially true
    run.observe(communicator, train);       // after a synchronised one
    run.observe(communicator, accumulate);  // after a synchronised one
    run.observe(communicator, train);       // after no_sync: not
    run.observe(communicator, evaluate);    // after a synchronised one
    run.observe(communicator, evaluate);    // after no_grad: not
    run.observe(communicator, train);       // after no_grad: not
    run.observe(communicator, train);
    return run.synced;
  });
  EXPECT_THAT(results[1], ElementsAre(true, true, true, false, true, false, false, true));
}

TEST(DdpEngineTest, BuffersAreLeftAloneIfTold) {
  for (const bool ignore : {true, false}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      BufferRun run;
      DdpOptions options;
      options.broadcast_buffers = ignore;
      if (ignore) {
        options.ignored = {"factor"};
      }
      BufferedDdp ddp(run.module, communicator, options);
      run.observe(communicator, [&] { ddp().backward(); });
      return std::make_pair(run.synced, communicator.count(CallSite::kBuffers));
    });
    EXPECT_THAT(results[1].first, ElementsAre(false));
    EXPECT_EQ(results[1].second, 0);
  }
}

TEST(DdpEngineTest, BuffersWithNewStorageAndNewBuffersAreFound) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    BufferRun run;
    BufferedDdp ddp(run.module, communicator);
    ddp().backward();
    run.module->factor.set_data(at::full({2}, static_cast<double>(5 + communicator.rank())));
    const at::Tensor added = run.module->register_buffer(
        "added", at::full({1}, static_cast<double>(7 + communicator.rank())));
    ddp();
    return run.module->factor[0].item<double>() + added.item<double>();
  });
  EXPECT_THAT(results, ElementsAre(12, 12));
}

// The broadcast of equal buffers must not disturb what autograd saved in the first forward.
TEST(DdpEngineTest, TwoForwardsBeforeOneBackwardWorkWhileBuffersAreEqual) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<BufferedImpl>();
    BufferedDdp ddp(module, communicator);
    (ddp() + ddp()).backward();
    return module->weight.grad()[0].item<double>();
  });
  EXPECT_THAT(results, ElementsAre(2, 2));
}

TEST(DdpEngineTest, EvaluationOnOneRankWithoutBuffersIssuesNothing) {
  const auto collectives = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator);
    train_once(ddp, all_terms(2));
    const auto before = communicator.log().size();
    if (communicator.rank() == 0) {
      const at::NoGradGuard no_grad;
      ddp(all_terms(2));
    }
    return communicator.log().size() - before;
  });
  EXPECT_THAT(collectives, ElementsAre(0, 0));
}

// Steps and events.

TEST(DdpEngineTest, TagsCarryTheGivenStepOrElseCountSynchronisedForwards) {
  const auto results = run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    train_once(ddp, all_terms(1));
    ddp.no_sync([&] { train_once(ddp, all_terms(1)); });
    train_once(ddp, all_terms(1));
    ddp.set_step(41);
    train_once(ddp, all_terms(1));
    std::vector<std::int64_t> steps;
    for (const CollectiveRecord& record : communicator.log()) {
      if (record.tag.site == CallSite::kBucket) {
        steps.push_back(record.tag.step);
      }
    }
    return steps;
  });
  EXPECT_THAT(results[0], ElementsAre(0, 1, 41));
}

TEST(DdpEngineTest, TellsTheObserverInOrder) {
  const auto results = run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    EventLog events;
    DdpOptions options;
    options.find_unused_parameters = true;
    options.observer = &events;
    BankDdp ddp(bank.ptr(), communicator, options);
    train_once(ddp, {{1}});
    std::vector<std::string> told;
    for (const Event& event : events.events) {
      told.push_back(std::string(lockstep::to_string(event.kind)) + " " +
                     std::to_string(event.index));
    }
    return told;
  });
  EXPECT_THAT(results[0], ElementsAre("forward 1", "unused_marked 0", "gradient_ready 1",
                                      "bucket_launched 0", "finalized -1"));
}

}  // namespace
}  // namespace lockstep::test
