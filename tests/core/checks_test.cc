// SPDX-License-Identifier: Apache-2.0
// Checked mode: each mistake is named, before it does harm, and nothing else is accused.
#include "core/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <tuple>

#include "core/checked_communicator.h"
#include "core/error.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

DdpOptions checked(Checks level) {
  DdpOptions options;
  options.checks.level = level;
  options.checks.replicas_every = 1;
  return options;
}

// Each rank's DdpError, as "kind: message"; "" where there was none.
template <typename Body>
std::vector<std::string> errors_of(std::int64_t world_size, const Body& body) {
  std::vector<std::string> texts;
  for (const auto& outcome : try_run_ranks(world_size, body)) {
    const auto error = outcome.template error_as<DdpError>();
    texts.push_back(error ? error->kind() + ": " + error->what() : "");
  }
  return texts;
}

TEST(ChecksTest, CorrectTrainingIsLeftAloneAndItsGradientsStayTheSame) {
  for (const Checks level : {Checks::kOff, Checks::kFast, Checks::kFull}) {
    const auto results = run_ranks(3, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(4);
      BankDdp ddp(bank.ptr(), communicator, checked(level));
      for (int step = 0; step < 3; ++step) {
        clear_gradients(*bank);
        {
          const NoSyncGuard guard = ddp.no_sync();
          train_once(ddp, all_terms(4, 3.0));
        }
        train_once(ddp, all_terms(4, static_cast<double>(3 * communicator.rank())));
      }
      return gradients(*bank);
    });
    for (const auto& gradient : results) {
      EXPECT_THAT(gradient, ElementsAre(6.0, 6.0, 6.0, 6.0));  // 3 + (0 + 3 + 6) / 3
    }
  }
}

TEST(ChecksTest, AReductionThatBackwardLeavesUnfinishedIsAnErrorOfThatBackward) {
  for (const Checks level : {Checks::kOff, Checks::kFast}) {
    const auto errors = errors_of(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(3);
      BankDdp ddp(bank.ptr(), communicator, checked(level));
      train_once(ddp, {{0, 1.0}, {2, 1.0}});
    });
    for (const std::string& error : errors) {
      if (level == Checks::kOff) {
        EXPECT_EQ(error, "");  // what it is there for: without checks nothing is said yet
      } else {
        EXPECT_THAT(error, HasSubstr("reduction_unfinished: "));
        EXPECT_THAT(error, HasSubstr("p1 (index 1)"));
      }
    }
  }
}

struct TwoOutputs : torch::nn::Module {
  TwoOutputs()
      : first(register_parameter("first", at::ones({2}))),
        second(register_parameter("second", at::ones({2}))) {}
  std::tuple<at::Tensor, at::Tensor> forward() { return {first.sum(), (second * 2).sum()}; }
  at::Tensor first, second;
};

TEST(ChecksTest, TheLastOfTheBackwardsOfAForwardMustFinishTheReduction) {
  for (const std::int64_t backwards : {1, 2}) {
    const auto errors = errors_of(2, [&](LocalCommunicator& communicator) {
      const auto module = std::make_shared<TwoOutputs>();
      DdpOptions options = checked(Checks::kFast);
      options.checks.backwards_per_forward = backwards;
      DistributedDataParallel<TwoOutputs> ddp(module, communicator, options);
      auto [a, b] = ddp();
      a.backward();
      b.backward();
      EXPECT_EQ(module->second.grad()[0].item<float>(), 2.0F);
    });
    EXPECT_EQ(errors[0].empty(), backwards == 2) << errors[0];
  }
}

TEST(ChecksTest, AModuleThatChangedAfterWrappingIsNamedByTheNextForward) {
  struct Change {
    const char* kind;
    std::function<void(ParameterBankImpl&)> make;
  };
  const std::vector<Change> changes = {
      {"trainable_set_changed",
       [](ParameterBankImpl& bank) { bank.parameter(1).requires_grad_(false); }},
      {"parameters_changed",
       [](ParameterBankImpl& bank) { bank.register_parameter("late", at::ones({1})); }},
      {"buffers_changed",
       [](ParameterBankImpl& bank) { bank.register_buffer("late", at::ones({1})); }},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.kind);
    const auto errors = errors_of(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(2);
      BankDdp ddp(bank.ptr(), communicator, checked(Checks::kFast));
      train_once(ddp, all_terms(2));
      change.make(*bank);
      ddp(all_terms(2));
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, HasSubstr(std::string(change.kind) + ": rank "));
    }
  }
}

TEST(ChecksTest, AParameterThatWasConvertedAndBackHasLostItsHookAndIsNamed) {
  for (const Checks level : {Checks::kOff, Checks::kFast}) {
    const auto errors = errors_of(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(2);
      BankDdp ddp(bank.ptr(), communicator, checked(level));
      bank->to(at::kDouble);
      bank->to(at::kFloat);
      train_once(ddp, all_terms(2, static_cast<double>(communicator.rank())));
      EXPECT_EQ(gradients(*bank)[0], static_cast<double>(communicator.rank()));  // stayed local
    });
    for (const std::string& error : errors) {
      if (level == Checks::kOff) {
        EXPECT_EQ(error, "");  // what it is there for: without checks nothing is said
      } else {
        EXPECT_THAT(error, HasSubstr("parameter_replaced: rank "));
        EXPECT_THAT(error, HasSubstr("was converted"));
      }
    }
  }
}

TEST(ChecksTest, ABackwardThatNoForwardOfTheWrapperPreparedIsAnError) {
  for (const Checks level : {Checks::kOff, Checks::kFast}) {
    for (const bool second_backward : {false, true}) {
      const auto errors = errors_of(2, [&](LocalCommunicator& communicator) {
        ParameterBank bank = scalar_bank(1);
        BankDdp ddp(bank.ptr(), communicator, checked(level));
        const at::Tensor loss = second_backward ? ddp(all_terms(1)) : bank->forward(all_terms(1));
        if (second_backward) {
          loss.backward({}, /*retain_graph=*/true);
        }
        loss.backward();
      });
      for (const std::string& error : errors) {
        if (level == Checks::kOff) {
          EXPECT_EQ(error, "");
        } else {
          EXPECT_THAT(error, HasSubstr("unarmed_backward: rank "));
          EXPECT_THAT(error, HasSubstr("p0"));
        }
      }
    }
  }
}

TEST(ChecksTest, BackwardsOfForwardsUnderNoSyncMayComeInAnyOrder) {
  const auto errors = errors_of(2, [&](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator, checked(Checks::kFast));
    at::Tensor local;
    {
      const NoSyncGuard guard = ddp.no_sync();
      local = ddp(all_terms(1));
    }
    ddp(all_terms(1)).backward();
    local.backward({}, /*retain_graph=*/true);  // after the reduction, and twice
    local.backward();
    EXPECT_EQ(gradients(*bank)[0], 3.0);
    const NoSyncGuard guard = ddp.no_sync();
    bank->parameter(0).square().sum().backward();  // a penalty of every rank's own
  });
  EXPECT_THAT(errors, ElementsAre("", ""));
}

struct Quadratic : torch::nn::Module {
  Quadratic()
      : w(register_parameter("w", at::full({1}, 0.5))), b(register_parameter("b", at::ones({1}))) {}
  at::Tensor forward(const at::Tensor& x) { return w * x * x + b; }
  at::Tensor w, b;
};

// The loss is (dy/dx)^2 = (2 w x)^2, and its derivative by w is 8 w x^2: 4 and 16, on average 10.
TEST(ChecksTest, GradientsOfInputsInTheMiddleOfAStepReduceNothing) {
  for (const Checks level : {Checks::kOff, Checks::kFast}) {
    for (const bool is_static : {false, true}) {
      run_ranks(2, [&](LocalCommunicator& communicator) {
        const auto module = std::make_shared<Quadratic>();
        DdpOptions options = checked(level);
        options.static_graph = is_static;
        DistributedDataParallel<Quadratic> ddp(module, communicator, options);
        for (int step = 0; step < 3; ++step) {
          module->zero_grad();
          module->b.mutable_grad() = at::Tensor();
          const at::Tensor x =
              at::full({1}, communicator.rank() + 1, at::kFloat).set_requires_grad(true);
          const at::Tensor y = ddp(x);
          const at::Tensor slope = torch::autograd::grad({y}, {x}, {}, true, true)[0];
          const at::Tensor loss = slope.square().sum();
          (is_static ? loss : loss + 0.0 * y.sum()).backward();
          EXPECT_EQ(module->w.grad().item<float>(), 10.0F);
          EXPECT_EQ(module->b.grad().defined(), !is_static);
        }
        return 0;
      });
    }
  }
}

struct Buffered : torch::nn::Module {
  Buffered()
      : weight(register_parameter("weight", at::ones({2}))),
        factor(register_buffer("factor", at::ones({2}))) {}
  at::Tensor forward() { return (weight * factor).sum(); }
  at::Tensor weight, factor;
};

TEST(ChecksTest, ABufferThatChangesWhileAGraphHasSavedItIsNamed) {
  for (const bool keeps_graph : {true, false}) {
    for (const bool changes : {true, false}) {
      const auto outcomes = try_run_ranks(2, [&](LocalCommunicator& communicator) {
        const auto module = std::make_shared<Buffered>();
        DistributedDataParallel<Buffered> ddp(module, communicator, checked(Checks::kFast));
        at::Tensor loss = ddp();
        if (!keeps_graph) {
          loss = at::Tensor();
        }
        if (changes && communicator.rank() == 1) {
          const at::NoGradGuard no_grad;
          module->factor.mul_(2);
        }
        ddp();  // broadcasts rank 0's
      });
      const auto error = outcomes[1].error_as<DdpError>();
      EXPECT_FALSE(outcomes[0].error_as<DdpError>().has_value());
      ASSERT_EQ(error.has_value(), keeps_graph && changes);
      if (error) {
        EXPECT_EQ(error->kind(), "buffer_changed_while_saved");
        EXPECT_THAT(error->what(), HasSubstr("rank 1, step 1: the buffer factor"));
      }
    }
  }
}

// A leaf: hooks on it live as long as the module.
struct ReturnsAParameter : Buffered {
  ReturnsAParameter() : offset(register_parameter("offset", at::ones({2}))) {}
  std::vector<at::Tensor> forward() { return {Buffered::forward(), offset}; }
  at::Tensor offset;
};

TEST(ChecksTest, AParameterThatTheModuleReturnsKeepsNoGraphAlive) {
  const auto errors = errors_of(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<ReturnsAParameter>();
    DistributedDataParallel<ReturnsAParameter> ddp(module, communicator, checked(Checks::kFast));
    ddp();  // and its graph is gone
    if (communicator.rank() == 1) {
      const at::NoGradGuard no_grad;
      module->factor.mul_(2);
    }
    ddp();
  });
  EXPECT_THAT(errors, ElementsAre("", ""));
}

TEST(ChecksTest, AParameterThatTheModuleReturnedUnderNoSyncHidesNoUnarmedBackward) {
  const auto errors = errors_of(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<ReturnsAParameter>();
    DistributedDataParallel<ReturnsAParameter> ddp(module, communicator, checked(Checks::kFast));
    const auto loss = [&] {
      const std::vector<at::Tensor> outputs = ddp();
      return outputs[0] + outputs[1].sum();
    };
    {
      const auto guard = ddp.no_sync();
      loss().backward();
    }
    const at::Tensor synchronised = loss();
    synchronised.backward({}, /*retain_graph=*/true);
    synchronised.backward();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("unarmed_backward: rank "));
  }
}

TEST(ChecksTest, WhoSearchesForUnusedParametersMayFreeze) {
  for (const Checks level : {Checks::kFast, Checks::kFull}) {
    const auto errors = errors_of(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(2);
      DdpOptions options = checked(level);
      options.find_unused_parameters = true;
      BankDdp ddp(bank.ptr(), communicator, options);
      train_once(ddp, all_terms(2));
      clear_gradients(*bank);
      bank->parameter(1).requires_grad_(false);
      train_once(ddp, all_terms(2, 3.0));
      EXPECT_EQ(gradients(*bank)[0], 3.0);
    });
    EXPECT_THAT(errors, ElementsAre("", ""));
  }
}

TEST(ChecksTest, AParameterThatIsNotThereIsNoMistakeUntilItAppears) {
  struct WithoutBias : torch::nn::Module {
    WithoutBias()
        : weight(register_parameter("weight", at::ones({2}))),
          bias(register_parameter("bias", at::Tensor(), /*requires_grad=*/false)) {}
    at::Tensor forward() { return weight.sum(); }
    at::Tensor weight;  // not a reference: the next registration moves it
    at::Tensor& bias;
  };
  const auto errors = errors_of(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<WithoutBias>();
    DistributedDataParallel<WithoutBias> ddp(module, communicator, checked(Checks::kFast));
    ddp().backward();
    ddp().backward();
    EXPECT_EQ(module->weight.grad()[0].item<float>(), 2.0F);  // nobody was accused on the way
    module->bias = at::ones({2}).requires_grad_(true);
    ddp();
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("parameters_changed: rank "));
    EXPECT_THAT(error, HasSubstr("bias was not there"));
  }
}

TEST(ChecksTest, AnotherOrderOfParametersOrAnotherFrozenSetIsRefusedOnEveryRank) {
  struct Named : torch::nn::Module {
    Named(const std::string& first, const std::string& second, bool freeze) {
      register_parameter(first, at::ones({2}));
      register_parameter(second, at::ones({2}));
      extra = register_parameter("frozen", at::ones({2}), !freeze);
    }
    at::Tensor forward() { return at::ones({1}); }
    at::Tensor extra;
  };
  for (const bool order : {true, false}) {
    const auto errors = errors_of(3, [&](LocalCommunicator& communicator) {
      const bool odd = communicator.rank() == 1;
      const auto module = std::make_shared<Named>(odd && order ? "b" : "a",
                                                  odd && order ? "a" : "b", odd && !order);
      const DistributedDataParallel<Named> ddp(module, communicator, checked(Checks::kFast));
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, HasSubstr("model_mismatch: "));
      EXPECT_THAT(error,
                  HasSubstr(order ? "rank 1 has parameter b: Float, trained where rank 0 has "
                                    "parameter a"
                                  : "parameter frozen: Float, frozen"));
    }
  }
}

TEST(ChecksTest, FullChecksCompareUnusedSetsBeforeBackward) {
  const auto errors = errors_of(3, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(3);
    BankDdp ddp(bank.ptr(), communicator, checked(Checks::kFull));
    train_once(ddp, all_terms(3));
    ddp(communicator.rank() == 2 ? std::vector<Term>{{0, 1.0}, {2, 1.0}} : all_terms(3));
  });
  for (const std::string& error : errors) {
    EXPECT_THAT(error, HasSubstr("unused_parameters: "));
    EXPECT_THAT(error, HasSubstr("rank(s) 2 does not use p1"));
  }
}

TEST(ChecksTest, ReplicasThatDriftAreNamedWithTensorAndRank) {
  for (const bool in_state : {false, true}) {
    const auto errors = errors_of(3, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(2);
      BankDdp ddp(bank.ptr(), communicator, checked(Checks::kFast));
      at::Tensor momentum = at::zeros({4});
      ddp.engine().set_checked_state([&] {
        return std::vector<std::pair<std::string, at::Tensor>>{{"momentum", momentum}};
      });
      train_once(ddp, all_terms(2));
      if (communicator.rank() == 1) {
        const at::NoGradGuard no_grad;
        (in_state ? momentum : bank->parameter(1)).add_(0x1p-20);
      }
      ddp(all_terms(2));
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, HasSubstr("replicas_differ: "));
      EXPECT_THAT(error, HasSubstr(in_state ? "momentum of rank(s) 1" : "p1 of rank(s) 1"));
    }
  }
}

// The joined rank's replica is behind; it is told, but not compared.
TEST(ChecksTest, InsideJoinActiveRanksAreComparedAndJoinedOnesAreTold) {
  for (const std::string mistake : {"none", "drift", "unused"}) {
    const auto train = [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(2);
      BankDdp ddp(bank.ptr(), communicator, checked(Checks::kFull));
      ddp.join([&] {
        for (std::int64_t step = 0; step < 1 + 2 * std::min<std::int64_t>(communicator.rank(), 1);
             ++step) {
          const bool now = communicator.rank() == 2 && step == 2;
          const at::NoGradGuard no_grad;
          bank->parameter(1).add_(now && mistake == "drift" ? 2 : 1);
          const at::AutoGradMode with_grad(true);
          train_once(ddp, now && mistake == "unused" ? std::vector<Term>{{0, 1.0}} : all_terms(2));
        }
      });
    };
    if (mistake == "none") {
      run_ranks(3, [&](LocalCommunicator& communicator) {
        train(communicator);
        return 0;
      });
      continue;
    }
    for (const std::string& error : errors_of(3, train)) {
      EXPECT_THAT(error,
                  HasSubstr(mistake == "drift" ? "replicas_differ: " : "unused_parameters: "));
      EXPECT_THAT(error, HasSubstr(mistake == "drift" ? "p1 of rank(s) 2 is not that of rank 1"
                                                      : "rank(s) 2 does not use p1"));
    }
  }
}

TEST(ChecksTest, ReplicasAreComparedAsOftenAsAsked) {
  for (const std::int64_t every : {0, 1, 3}) {
    const auto counts = run_ranks(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(2);
      DdpOptions options = checked(Checks::kFast);
      options.checks.replicas_every = every;
      BankDdp ddp(bank.ptr(), communicator, options);
      communicator.clear_log();
      for (int step = 0; step < 7; ++step) {
        train_once(ddp, all_terms(2));
      }
      return communicator.count(CallSite::kChecks);
    });
    EXPECT_EQ(counts[0], every == 0 ? 0 : every == 1 ? 7 : 3);  // steps 0, 3, 6
  }
}

TEST(CheckedCommunicatorTest, EqualCollectivesPass) {
  const auto sums = run_ranks(3, [](LocalCommunicator& inner) {
    CheckedCommunicator communicator(inner);
    const at::Tensor tensor = at::full({2}, static_cast<double>(inner.rank()), at::kDouble);
    communicator.all_reduce(tensor, ReduceOp::kSum, {CallSite::kBucket, 1, 0})->wait();
    communicator.broadcast(tensor, 2, {CallSite::kBuffers, 1, -1})->wait();
    communicator.barrier({CallSite::kBarrier, 1, -1})->wait();
    return tensor[1].item<double>();
  });
  EXPECT_THAT(sums, ElementsAre(3.0, 3.0, 3.0));
}

TEST(CheckedCommunicatorTest, AWrongPairingIsNamedOnEveryRank) {
  const auto outcomes = try_run_ranks(3, [](LocalCommunicator& inner) {
    CheckedCommunicator communicator(inner);
    const std::int64_t bucket = inner.rank() == 1 ? 7 : 0;
    communicator.all_reduce(at::zeros({4}), ReduceOp::kSum, {CallSite::kBucket, 2, bucket})->wait();
  });
  for (const auto& outcome : outcomes) {
    const auto error = outcome.error_as<Desync>();
    ASSERT_TRUE(error.has_value());
    EXPECT_THAT(error->what(),
                HasSubstr("rank 0 is in all_reduce (bucket, step 2, bucket 0), 4 x Float, but rank "
                          "1 is in all_reduce (bucket, step 2, bucket 7)"));
  }
}

}  // namespace
}  // namespace lockstep::test
