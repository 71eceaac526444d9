// SPDX-License-Identifier: Apache-2.0
// Checkpoints inside the model that DDP wraps, and around the wrapper.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "core/checkpoint.h"
#include "core/distributed_data_parallel.h"
#include "core/error.h"
#include "tests/core/parameter_bank.h"
#include "tests/support/run_ranks.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

enum class Kind { kPlain, kCheckpoint, kReentrant };

struct Settings {
  Kind kind = Kind::kPlain;
  int uses = 1;                // of `second`, each in a checkpoint of its own
  bool has_unused = false;     // a parameter that forward does not use
  bool shares_weight = false;  // first and second have one weight
  bool lists_use = false;      // a re-entrant checkpoint says what it may use
  bool alternates = false;     // first is used in even, second in odd forwards
};

struct Layer {
  at::Tensor weight, bias;
};

// Two layers of which the second is checkpointed.
struct LayersImpl : torch::nn::Module {
  explicit LayersImpl(const Settings& settings_in) : settings(settings_in) {
    first = {ramp("first_weight", {2, 2}), ramp("first_bias", {2})};
    second = {settings.shares_weight ? first.weight : ramp("second_weight", {2, 2}),
              ramp("second_bias", {2})};
    if (settings.has_unused) {
      ramp("unused", {3});
    }
  }
  at::Tensor ramp(const char* name, const std::vector<std::int64_t>& sizes) {
    const at::Tensor ones = at::ones(sizes);
    return register_parameter(name, (ones.flatten().cumsum(0) / 4).view(sizes));
  }
  at::Tensor part(const Layer& layer, const at::Tensor& x) const {
    const auto body = [layer](const Tensors& inputs) {
      return Tensors{torch::linear(inputs[0], layer.weight, layer.bias)};
    };
    switch (settings.kind) {
      case Kind::kPlain:
        return body({x})[0];
      case Kind::kCheckpoint:
        return checkpoint(body, {x}, {layer.weight, layer.bias})[0];
      case Kind::kReentrant: {
        CheckpointOptions options;
        if (settings.lists_use) {
          options.may_use = Tensors{layer.weight, layer.bias};
        }
        return checkpoint_reentrant(body, {x}, options)[0];
      }
    }
    throw std::logic_error("no such kind");
  }
  at::Tensor forward(const at::Tensor& x) {
    if (settings.alternates) {
      return part(++forwards % 2 == 1 ? first : second, x);
    }
    at::Tensor hidden = torch::linear(x, first.weight, first.bias);
    for (int use = 0; use < settings.uses; ++use) {
      hidden = part(second, hidden);
    }
    return hidden;
  }

  Settings settings;
  Layer first, second;
  int forwards = 0;
};
using Ddp = DistributedDataParallel<LayersImpl>;

// Two samples with small integers: every gradient is dyadic, so that sums and means are exact.
at::Tensor batch() { return at::tensor({1.0F, 2.0F, 3.0F, -1.0F}).view({2, 2}); }

constexpr int kSteps = 4;

std::vector<double> flatten_gradients(const LayersImpl& module) {
  std::vector<double> values;
  for (const at::Tensor& parameter : module.parameters()) {
    if (!parameter.grad().defined()) {
      values.push_back(kNone);
      continue;
    }
    const at::Tensor flat = parameter.grad().reshape({-1}).to(at::kDouble).contiguous();
    values.insert(values.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
  return values;
}

// Gradients of every step, of plain training on the whole batch.
std::vector<std::vector<double>> local_training(Settings settings) {
  settings.kind = Kind::kPlain;
  const auto module = std::make_shared<LayersImpl>(settings);
  std::vector<std::vector<double>> steps;
  for (int step = 0; step < kSteps; ++step) {
    clear_gradients(*module);
    (module->forward(batch()).sum() / 2).backward();
    steps.push_back(flatten_gradients(*module));
  }
  return steps;
}

using Forward = std::function<at::Tensor(Ddp& ddp, const at::Tensor& x)>;

std::vector<std::vector<double>> train(LocalCommunicator& communicator, const Settings& settings,
                                       const DdpOptions& options, const Forward& forward) {
  const auto module = std::make_shared<LayersImpl>(settings);
  Ddp ddp(module, communicator, options);
  std::vector<std::vector<double>> steps;
  for (int step = 0; step < kSteps; ++step) {
    clear_gradients(*module);
    const at::Tensor x = batch().narrow(0, communicator.rank(), 1).clone().requires_grad_();
    forward(ddp, x).sum().backward();
    steps.push_back(flatten_gradients(*module));
  }
  return steps;
}

at::Tensor call(Ddp& ddp, const at::Tensor& x) { return ddp(x); }

void expect_local_training(const Settings& settings, const DdpOptions& options,
                           const Forward& forward = call) {
  const auto expected = local_training(settings);
  for (const auto& steps : run_ranks(2, [&](LocalCommunicator& communicator) {
         return train(communicator, settings, options, forward);
       })) {
    EXPECT_EQ(steps, expected);
  }
}

// The kind of the first DdpError, or "none".
std::string error_kind(const Settings& settings, const DdpOptions& options,
                       const Forward& forward = call) {
  const auto outcomes = try_run_ranks(
      2, [&](LocalCommunicator& communicator) { train(communicator, settings, options, forward); });
  const auto error = outcomes[0].error_as<DdpError>();
  return error.has_value() ? error->kind() : "none";
}

DdpOptions with(bool static_graph, bool find_unused, bool as_view = false) {
  DdpOptions options;
  options.static_graph = static_graph;
  options.find_unused_parameters = find_unused;
  options.gradient_as_bucket_view = as_view;
  return options;
}

TEST(CheckpointDdpTest, ALayerCheckpointedOnceTrainsAsLocallyInEveryMode) {
  for (const Kind kind : {Kind::kCheckpoint, Kind::kReentrant}) {
    for (const bool as_view : {false, true}) {
      for (const bool static_graph : {false, true}) {
        expect_local_training({kind}, with(static_graph, false, as_view));
      }
    }
  }
}

TEST(CheckpointDdpTest, FindUnusedWorksUnlessTheCheckpointIsReentrant) {
  for (const bool has_unused : {false, true}) {
    expect_local_training({Kind::kCheckpoint, 1, has_unused}, with(false, true));
    EXPECT_EQ(error_kind({Kind::kReentrant, 1, has_unused}, with(false, true)), "ready_twice");
  }
}

// The graph does not show what a re-entrant checkpoint uses, so that correct training looked as if
// it left parameters unused.
TEST(CheckpointDdpTest, FullChecksAccuseOnlyWhatNoReentrantCheckpointMayUse) {
  for (const bool lists_use : {false, true}) {
    Settings settings;
    settings.kind = Kind::kReentrant;
    settings.lists_use = lists_use;
    DdpOptions options;
    options.checks.level = Checks::kFull;
    expect_local_training(settings, options);
    settings.has_unused = true;
    const auto outcomes = try_run_ranks(
        2, [&](LocalCommunicator& communicator) { train(communicator, settings, options, call); });
    const auto error = outcomes[0].error_as<DdpError>();
    ASSERT_TRUE(error.has_value());
    EXPECT_THAT(error->parameters(), ElementsAre("unused"));
    EXPECT_EQ(error->kind(), lists_use ? "unused_parameters" : "reduction_unfinished");
    if (lists_use) {
      EXPECT_THAT(error->what(), HasSubstr("Set static_graph"));
    }
    options.static_graph = true;
    expect_local_training(settings, options);
  }
}

TEST(CheckpointDdpTest, AStaticGraphSettlesUnusedParametersForBothKinds) {
  for (const Kind kind : {Kind::kCheckpoint, Kind::kReentrant}) {
    expect_local_training({kind, 1, true}, with(true, false));
  }
}

TEST(CheckpointDdpTest, ALayerCheckpointedTwiceNeedsAStaticGraphOnlyIfReentrant) {
  for (const bool find_unused : {false, true}) {
    expect_local_training({Kind::kCheckpoint, 2}, with(false, find_unused));
    EXPECT_EQ(error_kind({Kind::kReentrant, 2}, with(false, find_unused)), "ready_twice");
  }
  for (const Kind kind : {Kind::kCheckpoint, Kind::kReentrant}) {
    expect_local_training({kind, 2}, with(true, false));
    expect_local_training({kind, 3, true}, with(true, false, true));
  }
}

TEST(CheckpointDdpTest, LayersThatAlternateWorkWithFindUnused) {
  Settings settings;
  settings.kind = Kind::kCheckpoint;
  settings.alternates = true;
  expect_local_training(settings, with(false, true));
  expect_local_training(settings, with(false, true, true));
  settings.shares_weight = true;
  expect_local_training(settings, with(false, true));
}

TEST(CheckpointDdpTest, ASharedWeightWorksInsideCheckpointsAsItsUsesAllow) {
  Settings settings;
  settings.shares_weight = true;
  settings.kind = Kind::kCheckpoint;
  expect_local_training(settings, with(false, false));
  expect_local_training(settings, with(true, false));
  settings.kind = Kind::kReentrant;  // once in the outer graph, once in a nested one
  EXPECT_EQ(error_kind(settings, with(false, false)), "ready_twice");
  expect_local_training(settings, with(true, false));
  settings.uses = 2;
  expect_local_training(settings, with(true, false));
}

// The checkpoint around the wrapper itself: its forward runs again inside backward.
TEST(CheckpointDdpTest, TheWrapperItselfMayBeCheckpointedUnlessItsGraphIsStaticAndNothingNests) {
  const Forward reentrant = [](Ddp& ddp, const at::Tensor& x) {
    return checkpoint_reentrant([&ddp](const Tensors& inputs) { return Tensors{ddp(inputs[0])}; },
                                {x})[0];
  };
  const Forward returning = [](Ddp& ddp, const at::Tensor& x) {
    return checkpoint([&ddp](const Tensors& inputs) { return Tensors{ddp(inputs[0])}; }, {x},
                      ddp.module().parameters())[0];
  };
  for (const bool shares_weight : {false, true}) {
    Settings settings;
    settings.shares_weight = shares_weight;
    expect_local_training(settings, with(false, false), reentrant);
    expect_local_training(settings, with(true, false), reentrant);
    expect_local_training(settings, with(false, false), returning);
    EXPECT_EQ(error_kind(settings, with(true, false), returning), "checkpoint_static_graph");
  }
}

// Without DDP's averaging these tests would fail: rank 0's own gradient is another one.
TEST(CheckpointDdpTest, OneRanksOwnGradientIsNotTheMean) {
  const auto own = run_ranks(1, [](LocalCommunicator& communicator) {
    return train(communicator, {Kind::kCheckpoint}, {}, call);
  });
  EXPECT_NE(own[0], local_training({}));
}

}  // namespace
}  // namespace lockstep::test
