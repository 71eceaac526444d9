// SPDX-License-Identifier: Apache-2.0
// A training that is saved and loaded goes on as if nothing had been.
#include "harness/saved_state.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "harness/sync/gradient_sync.h"

namespace lockstep::harness {
namespace {

constexpr std::uint64_t kSeed = 3;

// A shared module, a frozen parameter, buffers, and a block that no forward uses.
ModelSpec small_model() {
  ModelSpec model;
  model.kind = "graph";
  model.blocks = {{"a", "linear 3 3"},
                  {"norm", "batch_norm 3"},
                  {"again", "same a"},
                  {"spare", "linear 2 2"},
                  {"out", "linear 3 2"}};
  model.forward = {{"a"}, {"norm"}, {"again"}, {"out"}};
  model.frozen = {"out.bias"};
  return model;
}

void train_step(GraphModel& model, Optimizer& optimizer, int step) {
  model.zero_grad();
  const at::Tensor input = at::sin(at::arange(12, at::kFloat) + step).view({4, 3});
  model.forward(input, Route{})[0].square().sum().backward();
  optimizer.step();
}

void expect_equal(const NamedParameters& expected, const NamedParameters& actual) {
  ASSERT_EQ(expected.names, actual.names);
  for (std::size_t i = 0; i < expected.names.size(); ++i) {
    EXPECT_TRUE(expected.tensors[i].equal(actual.tensors[i])) << expected.names[i];
    EXPECT_EQ(expected.tensors[i].requires_grad(), actual.tensors[i].requires_grad());
  }
}

class SavedStateTest : public ::testing::TestWithParam<const char*> {
 protected:
  OptimizerSpec optimizer_spec() const {
    OptimizerSpec spec;
    spec.kind = GetParam();
    spec.momentum = spec.kind == "sgd" || spec.kind == "rmsprop" ? 0.9 : 0.0;
    return spec;
  }
};

TEST_P(SavedStateTest, TrainingGoesOnBitByBit) {
  GraphModel whole(small_model(), false, kSeed, 0);
  Optimizer optimizer(optimizer_spec(), all_parameters(whole).tensors);
  train_step(whole, optimizer, 0);
  optimizer.set_lr(0.03);
  train_step(whole, optimizer, 1);

  GraphModel loaded(small_model(), false, kSeed + 1, 0);
  Optimizer fresh(optimizer_spec(), all_parameters(loaded).tensors);
  const SavedState saved = save_state(whole, optimizer);
  load_model(saved, loaded);
  load_optimizer(saved, fresh);
  expect_equal(all_parameters(whole), all_parameters(loaded));
  expect_equal(all_buffers(whole), all_buffers(loaded));
  for (int step = 2; step < 4; ++step) {
    train_step(whole, optimizer, step);
    train_step(loaded, fresh, step);
  }
  expect_equal(all_parameters(whole), all_parameters(loaded));
}

TEST_P(SavedStateTest, WithoutTheOptimizerTrainingGoesElsewhere) {
  GraphModel whole(small_model(), false, kSeed, 0);
  Optimizer optimizer(optimizer_spec(), all_parameters(whole).tensors);
  train_step(whole, optimizer, 0);
  GraphModel loaded(small_model(), false, kSeed, 0);
  load_model(save_state(whole, optimizer), loaded);
  Optimizer fresh(optimizer_spec(), all_parameters(loaded).tensors);
  train_step(whole, optimizer, 1);
  train_step(loaded, fresh, 1);
  EXPECT_FALSE(all_parameters(whole).tensors[0].equal(all_parameters(loaded).tensors[0]));
}

INSTANTIATE_TEST_SUITE_P(Kinds, SavedStateTest,
                         ::testing::Values("sgd", "adam", "adamw", "adagrad", "rmsprop"));

}  // namespace
}  // namespace lockstep::harness
