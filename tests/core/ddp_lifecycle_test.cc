// SPDX-License-Identifier: Apache-2.0
// A wrapper's life beyond training: buffer hooks, other groups, removed hooks, reductions of zeros.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "core/comm_hooks.h"
#include "core/error.h"
#include "core/reducer.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Buffer hooks.

// forward() moves both buffers by one.
struct BufferedImpl : torch::nn::Module {
  BufferedImpl() : weight(register_parameter("weight", torch::ones({1}))) {
    a = register_buffer("a", torch::zeros({1}));
    b = register_buffer("b", torch::zeros({1}));
  }
  at::Tensor forward() {
    const at::NoGradGuard no_grad;
    a.add_(1);
    b.add_(1);
    const at::AutoGradMode grad(true);
    return weight.sum();
  }
  at::Tensor weight, a, b;
};
using BufferedDdp = DistributedDataParallel<BufferedImpl>;

// Replaces each buffer by the sum over ranks, when awaited.
BufferHook summing_hook(Communicator& communicator, std::vector<std::string>& names) {
  return [&](const std::map<std::string, at::Tensor>& buffers) {
    std::vector<PendingTensor> pending;
    for (const auto& [name, buffer] : buffers) {
      names.push_back(name);
      const at::Tensor sum = buffer.clone();
      pending.push_back(PendingTensor(communicator.all_reduce(sum, ReduceOp::kSum, {}), sum)
                            .then([buffer = buffer](const at::Tensor& result) {
                              return at::Tensor(buffer).copy_(result);
                            }));
    }
    return pending;
  };
}

// Two ranks with equal buffers x. After forward: post, 2 (x + 1) once backward has ended; pre, the
// sum of what the last forward left is there only then, too, and loses what forward added.
TEST(BufferHookTest, ReplacesTheBroadcastAndIsAwaitedAtTheEndOfBackward) {
  for (const BufferHookPoint point :
       {BufferHookPoint::kPostForward, BufferHookPoint::kPreForward}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      const auto module = std::make_shared<BufferedImpl>();
      DdpOptions options;
      options.ignored = {"b"};
      BufferedDdp ddp(module, communicator, options);
      std::vector<std::string> names;
      ddp.register_buffer_hook(summing_hook(communicator, names), point);
      std::vector<double> seen;
      for (int step = 0; step < 3; ++step) {
        const at::Tensor loss = ddp();
        seen.push_back(module->a.item<double>());
        loss.backward();
        seen.push_back(module->a.item<double>());
      }
      EXPECT_THAT(names, ElementsAre("a", "a", "a"));
      EXPECT_EQ(communicator.count(CallSite::kBuffers), 0);
      return seen;
    });
    if (point == BufferHookPoint::kPostForward) {
      EXPECT_THAT(results, Each(ElementsAre(1, 2, 3, 6, 7, 14)));
    } else {
      EXPECT_THAT(results, Each(ElementsAre(1, 0, 1, 0, 1, 0)));
    }
  }
}

TEST(BufferHookTest, IsCalledWhenABroadcastWouldBeDueAndAwaitedByTheNextForwardIfNothingIsReduced) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<BufferedImpl>();
    BufferedDdp ddp(module, communicator);
    std::vector<std::string> names;
    ddp.register_buffer_hook(summing_hook(communicator, names));
    std::vector<double> seen;
    const auto evaluate = [&] {
      const at::NoGradGuard no_grad;
      ddp();
      seen.push_back(module->a.item<double>());
      seen.push_back(static_cast<double>(names.size()));
    };
    evaluate();  // due at first; 1 is to become 2
    evaluate();  // not due after no_grad; 2 + 1
    evaluate();
    return seen;
  });
  EXPECT_THAT(results, Each(ElementsAre(1, 2, 3, 2, 4, 2)));
}

TEST(BufferHookTest, IsRefusedASecondTimeAndWhereItWouldNeverBeCalled) {
  run_ranks(1, [](LocalCommunicator& communicator) {
    const auto hook = [](const std::map<std::string, at::Tensor>&) {
      return std::vector<PendingTensor>();
    };
    BufferedDdp ddp(std::make_shared<BufferedImpl>(), communicator);
    ddp.register_buffer_hook(hook);
    try {
      ddp.register_buffer_hook(hook);
      ADD_FAILURE() << "accepted";
    } catch (const DdpError& error) {
      EXPECT_EQ(error.kind(), "hook_registered_twice");
    }
    DdpOptions options;
    options.broadcast_buffers = false;
    BufferedDdp deaf(std::make_shared<BufferedImpl>(), communicator, options);
    EXPECT_THROW(deaf.register_buffer_hook(hook), UsageError);
  });
}

// Hooks removed, errors looked for.

TEST(DdpLifecycleTest, CheckFinalizedNamesWhatIsMissingAndOnlyThen) {
  const auto outcomes = try_run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator);
    ddp.check_finalized();
    const at::Tensor loss = ddp(all_terms(2));
    ddp.check_finalized();  // armed, but nothing has happened yet
    loss.backward();
    ddp.check_finalized();
    train_once(ddp, {{1}});
    ddp.check_finalized();
  });
  const auto error = outcomes[0].error_as<DdpError>();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), "reduction_unfinished");
  EXPECT_THAT(error->parameters(), ElementsAre("p0"));
}

TEST(DdpLifecycleTest, WithoutItsHooksAWrapperLeavesTheModuleToAnother) {
  for (const bool static_graph : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(2);
      const auto mine = static_cast<double>(communicator.rank());
      DdpOptions options;
      options.static_graph = static_graph;
      options.find_unused_parameters = !static_graph;
      BankDdp first(bank.ptr(), communicator, options);
      train_once(first, all_terms(2, mine));
      first.remove_hooks();
      first.remove_hooks();  // does nothing
      const auto before = communicator.log().size();
      clear_gradients(*bank);
      train_once(first, all_terms(2, mine));
      train_once(first, all_terms(2, mine));
      EXPECT_EQ(communicator.log().size(), before);
      std::vector<double> seen = gradients(*bank);  // local: 2 * mine
      BankDdp second(bank.ptr(), communicator);
      clear_gradients(*bank);
      train_once(second, all_terms(2, mine));
      seen.push_back(gradients(*bank)[0]);
      return seen;
    });
    EXPECT_THAT(results[0], ElementsAre(0, 0, 0.5));
    EXPECT_THAT(results[1], ElementsAre(2, 2, 0.5));
  }
}

TEST(DdpLifecycleTest, RemovingTheHooksForgetsAnUnfinishedReduction) {
  run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator);
    train_once(ddp, {{0}});
    EXPECT_THROW(ddp.check_finalized(), DdpError);
    ddp.remove_hooks();
    EXPECT_FALSE(ddp.engine().state().unfinished);
    EXPECT_NO_THROW(ddp(all_terms(2)));
  });
}

TEST(DdpLifecycleTest, WithoutItsHooksAWrapperLeavesBuffersAlone) {
  const auto broadcasts = run_ranks(2, [](LocalCommunicator& communicator) {
    BufferedDdp ddp(std::make_shared<BufferedImpl>(), communicator);
    ddp().backward();
    ddp.remove_hooks();
    const std::int64_t before = communicator.count(CallSite::kBuffers);
    ddp().backward();
    ddp().backward();
    return communicator.count(CallSite::kBuffers) - before;
  });
  EXPECT_THAT(broadcasts, ElementsAre(0, 0));
}

// Rank 2 of 3 leaves; the others fail inside backward and go on as a group of two.
TEST(DdpLifecycleTest, SurvivorsGoOnWithAnotherCommunicatorAfterAFailure) {
  for (const bool as_view : {false, true}) {
    for (const bool static_graph : {false, true}) {
      for (const bool find_unused : {false, true}) {
        const auto survivors = std::make_shared<LocalGroup>(2);
        const auto results = run_ranks(3, [&](LocalCommunicator& communicator) {
          ParameterBank bank = scalar_bank(3);
          DdpOptions options = one_parameter_per_bucket();
          options.gradient_as_bucket_view = as_view;
          options.static_graph = static_graph;
          options.find_unused_parameters = find_unused;
          EventLog events;
          options.observer = &events;
          BankDdp ddp(bank.ptr(), communicator, options);
          std::vector<double> seen;
          const auto mine = static_cast<double>(2 * communicator.rank() + 1);  // 1, 3 (, 5)
          const auto train = [&] {
            clear_gradients(*bank);
            train_once(ddp, all_terms(3, mine));
            const auto now = gradients(*bank);
            seen.insert(seen.end(), now.begin(), now.end());
          };
          for (int step = 0; step < 4; ++step) {
            train();
          }
          if (communicator.rank() == 2) {
            return std::make_pair(seen, std::string());
          }
          std::string failure;
          try {
            train();
          } catch (const PeerLost& error) {
            failure = "peer lost";
          }
          LocalCommunicator next(survivors, communicator.rank());
          events.events.clear();
          ddp.set_communicator(next);
          EXPECT_FALSE(ddp.engine().state().unfinished);
          for (int step = 0; step < 4; ++step) {
            train();
          }
          EXPECT_EQ(events.indices_of(EventKind::kRebuilt).size(),
                    find_unused && !static_graph ? 0U : 1U);
          EXPECT_EQ(ddp.logging_data().world_size, 2);
          return std::make_pair(seen, failure);
        });
        for (std::size_t rank = 0; rank < 2; ++rank) {
          const auto& [seen, failure] = results[rank];
          EXPECT_EQ(failure, "peer lost");
          std::vector<double> expected(12, 3.0);     // mean of 1, 3, 5
          expected.insert(expected.end(), 12, 2.0);  // mean of 1, 3
          EXPECT_EQ(seen, expected) << as_view << static_graph << find_unused;
        }
      }
    }
  }
}

// set_static_graph.

TEST(DdpLifecycleTest, StaticGraphSetBeforeTrainingIsTheSameAsTheOption) {
  const auto run = [](bool by_method) {
    return run_ranks(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(3);
      DdpOptions options = one_parameter_per_bucket();
      options.find_unused_parameters = true;
      options.static_graph = !by_method;
      BankDdp ddp(bank.ptr(), communicator, options);
      if (by_method) {
        ddp.set_static_graph();
        ddp.set_static_graph();
      }
      for (int step = 0; step < 4; ++step) {
        train_once(ddp, {{2}, {0, static_cast<double>(communicator.rank())}});
      }
      std::vector<std::string> log;
      for (const CollectiveRecord& record : communicator.log()) {
        log.push_back(to_string(record));
      }
      return log;
    });
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(DdpLifecycleTest, StaticGraphIsRefusedOnceTrainingHasBegun) {
  const auto outcomes = try_run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    ddp.no_sync([&] { train_once(ddp, all_terms(1)); });
    train_once(ddp, all_terms(1));
    ddp.set_static_graph();
  });
  const auto error = outcomes[0].error_as<DdpError>();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), "static_graph_too_late");
}

// Reductions that one rank has no gradients for, and other divisors.

struct Shadowed {
  std::vector<std::vector<std::int64_t>> plan;
  std::vector<double> gradients;
  std::vector<std::int32_t> ranks_using;
  std::vector<std::string> log;
};

// Rank 1 trains two steps with gradients of 6, `shadow` only takes part.
std::vector<Shadowed> shadow(std::int64_t shadow_rank, DdpOptions options, bool with_hook,
                             std::int64_t divisor) {
  return run_ranks(2, [&](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(3);
    Reducer reducer(bank->parameters(), {"p0", "p1", "p2"}, communicator, options);
    if (with_hook) {
      reducer.register_comm_hook(
          [&](const GradBucket& bucket) {
            return PendingTensor(communicator.all_reduce(bucket.buffer, ReduceOp::kSum, bucket.tag),
                                 bucket.buffer);
          },
          "sum");
    }
    Shadowed seen;
    for (int step = 0; step < 3; ++step) {
      reducer.rebuild_buckets_if_due();
      if (communicator.rank() == shadow_rank) {
        reducer.reduce_zeros();
      } else {
        clear_gradients(*bank);
        at::Tensor loss = bank->forward({{0, 6.0}, {2, 6.0}, {1, 6.0}});
        reducer.arm({&loss});
        if (divisor > 0 && step < 2) {
          reducer.divide_next_by([&] { return divisor; });
        }
        loss.backward();
        seen.gradients.push_back(gradients(*bank)[2]);
      }
    }
    if (communicator.rank() == shadow_rank) {
      EXPECT_THAT(gradients(*bank), Each(kNone));
      EXPECT_FALSE(reducer.state().unfinished);
    }
    seen.plan = reducer.layout()->buckets;
    seen.ranks_using = reducer.ranks_using();
    for (const CollectiveRecord& record : communicator.log()) {
      seen.log.push_back(to_string(record));
    }
    return seen;
  });
}

TEST(DdpLifecycleTest, ReducingZerosPairsWithTheOthersWhateverTheMode) {
  for (const std::int64_t shadow_rank : {0, 1}) {
    for (const bool find_unused : {false, true}) {
      for (const bool as_view : {false, true}) {
        DdpOptions options = one_parameter_per_bucket();
        options.find_unused_parameters = find_unused;
        options.gradient_as_bucket_view = as_view;
        const auto seen = shadow(shadow_rank, options, false, 0);
        const Shadowed& trained = seen[static_cast<std::size_t>(1 - shadow_rank)];
        EXPECT_EQ(seen[0].log, seen[1].log);
        EXPECT_THAT(trained.gradients, ElementsAre(3, 3, 3));
        if (find_unused) {
          EXPECT_THAT(trained.ranks_using, ElementsAre(1, 1, 1));
        } else if (shadow_rank == 0) {  // knows no order but that of declaration (D8)
          EXPECT_THAT(trained.plan, ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
        } else {
          EXPECT_THAT(trained.plan, ElementsAre(ElementsAre(1), ElementsAre(2), ElementsAre(0)));
        }
      }
    }
  }
}

TEST(DdpLifecycleTest, ReducingZerosGoesThroughTheHook) {
  const auto seen = shadow(1, one_parameter_per_bucket(), true, 0);
  EXPECT_THAT(seen[0].gradients, ElementsAre(6, 6, 6));
}

TEST(DdpLifecycleTest, ADivisorHoldsForOneReduction) {
  EXPECT_THAT(shadow(1, one_parameter_per_bucket(), false, 1)[0].gradients, ElementsAre(6, 6, 3));
}

TEST(DdpLifecycleTest, ReducingZerosIsRefusedForAStaticGraph) {
  run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    DdpOptions options;
    options.static_graph = true;
    Reducer reducer(bank->parameters(), {"p0"}, communicator, options);
    EXPECT_THROW(reducer.reduce_zeros(), UsageError);
  });
}

}  // namespace
}  // namespace lockstep::test
