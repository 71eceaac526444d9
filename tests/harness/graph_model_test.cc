// SPDX-License-Identifier: Apache-2.0
// The module behind a model description: values, names, sharing, ties, freezing and routes.
#include "harness/graph_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"

namespace lockstep::harness {
namespace {

using ::testing::ElementsAre;

ModelSpec graph(std::vector<std::pair<std::string, std::string>> blocks) {
  ModelSpec model;
  model.kind = "graph";
  model.blocks = std::move(blocks);
  return model;
}

/// Two branches that are added, then two heads; every width 4.
ModelSpec branching() {
  ModelSpec model = graph({{"trunk", "linear 4 4"},
                           {"left", "linear 4 4"},
                           {"right", "linear 4 4"},
                           {"vision", "linear 4 4"},
                           {"text", "linear 4 4"}});
  model.forward = {{"trunk"}, {"left", "right"}, {"vision", "text"}};
  return model;
}

GraphModel build(const ModelSpec& spec) { return GraphModel(spec, false, 7, 0); }

at::Tensor parameter(const GraphModel& model, const std::string& name) {
  const at::Tensor* found = model.named_parameters().find(name);
  EXPECT_NE(found, nullptr) << name;
  return found == nullptr ? at::Tensor() : *found;
}

at::Tensor linear(const GraphModel& model, const std::string& block, const at::Tensor& input) {
  return torch::linear(input, parameter(model, block + ".weight"),
                       parameter(model, block + ".bias"));
}

/// Small integers: sums of products are exact, whatever the order.
at::Tensor integers(const std::vector<std::int64_t>& sizes) {
  return torch::arange(torch::tensor(sizes).prod().item<std::int64_t>())
      .mul(5)
      .remainder(7)
      .sub(3)
      .reshape(sizes)
      .to(torch::kFloat);
}

/// Names of the parameters with a gradient after a backward through all outputs.
std::set<std::string> reached(GraphModel& model, const Route& route) {
  at::Tensor total;
  for (const at::Tensor& output : model.forward(torch::ones({2, 4}), route)) {
    total = total.defined() ? total + output.sum() : output.sum();
  }
  total.backward();
  std::set<std::string> names;
  for (const auto& item : model.named_parameters()) {
    if (item.value().grad().defined()) {
      names.insert(item.key());
    }
    item.value().mutable_grad() = at::Tensor();
  }
  return names;
}

/// The weight and bias of every block named.
std::set<std::string> of_blocks(const std::vector<std::string>& blocks) {
  std::set<std::string> names;
  for (const std::string& block : blocks) {
    names.insert(block + ".weight");
    names.insert(block + ".bias");
  }
  return names;
}

/// Copies a module's parameters into those of the model's block of the same local names.
void expect_same_forward(const std::string& text, torch::nn::AnyModule reference,
                         const at::Tensor& input) {
  GraphModel model = build(graph({{"block", text}}));
  const torch::NoGradGuard no_grad;
  const auto ours = model.children()[0]->named_parameters();
  const auto theirs = reference.ptr()->named_parameters();
  ASSERT_EQ(ours.keys(), theirs.keys()) << text;
  for (const auto& item : theirs) {
    ASSERT_EQ(ours[item.key()].sizes(), item.value().sizes()) << text;
    const at::Tensor values = item.value().dim() == 1 ? integers({item.value().size(0)})
                                                      : integers(item.value().sizes().vec());
    ours[item.key()].copy_(values);
    item.value().copy_(values);
  }
  EXPECT_EQ(model.children()[0]->named_buffers().keys(), reference.ptr()->named_buffers().keys());
  for (const bool training : {true, false}) {
    model.train(training);
    reference.ptr()->train(training);
    EXPECT_TRUE(at::equal(model.forward(input, {})[0], reference.forward(input))) << text;
  }
  for (const auto& item : reference.ptr()->named_buffers()) {
    EXPECT_TRUE(at::equal(model.children()[0]->named_buffers()[item.key()], item.value()))
        << item.key();
  }
}

TEST(GraphModelTest, BlocksComputeWhatLibTorchsModulesDo) {
  using torch::nn::AnyModule;
  expect_same_forward("linear 4 3", AnyModule(torch::nn::Linear(4, 3)), integers({5, 4}));
  expect_same_forward("linear 4 3 no_bias",
                      AnyModule(torch::nn::Linear(torch::nn::LinearOptions(4, 3).bias(false))),
                      integers({5, 4}));
  expect_same_forward("layer_norm 4",
                      AnyModule(torch::nn::LayerNorm(torch::nn::LayerNormOptions({4}))),
                      integers({5, 4}));
  expect_same_forward("batch_norm 4", AnyModule(torch::nn::BatchNorm1d(4)), integers({5, 4}));
  expect_same_forward("conv2d 2 3 3", AnyModule(torch::nn::Conv2d(2, 3, 3)),
                      integers({5, 2, 6, 6}));
  expect_same_forward("embedding 6 3", AnyModule(torch::nn::Embedding(6, 3)),
                      torch::tensor({0, 5, 2, 2}).reshape({2, 2}));
}

TEST(GraphModelTest, BatchNormTakesImagesToo) {
  GraphModel model = build(graph({{"conv", "conv2d 1 2 3"}, {"norm", "batch_norm 2"}}));
  torch::nn::BatchNorm2d reference(2);
  const at::Tensor input = integers({3, 1, 6, 6});
  const at::Tensor between =
      torch::conv2d(input, parameter(model, "conv.weight"), parameter(model, "conv.bias"));
  EXPECT_TRUE(at::allclose(model.forward(input, {})[0], reference->forward(between), 0, 1e-5));
}

TEST(GraphModelTest, BlocksWithoutParametersDoWhatTheirNamesSay) {
  const at::Tensor input = integers({3, 4});
  const auto after_scale = [&input](const std::string& block) {
    return build(graph({{"scale", "scale 4"}, {"block", block}})).forward(input, {})[0];
  };
  EXPECT_TRUE(at::equal(after_scale("relu"), input.clamp_min(0)));
  EXPECT_TRUE(at::equal(after_scale("tanh"), input.tanh()));
  EXPECT_TRUE(at::equal(after_scale("identity"), input));
  EXPECT_TRUE(at::equal(after_scale("flatten"), input));
  GraphModel image = build(graph({{"conv", "conv2d 1 2 3"}, {"flat", "flatten"}}));
  EXPECT_THAT(image.forward(torch::ones({3, 1, 6, 6}), {})[0].sizes(), ElementsAre(3, 32));
}

TEST(GraphModelTest, AnMlpIsAChainOfLinearAndActivation) {
  ModelSpec spec;
  spec.widths = {4, 5, 3};
  spec.activation = "tanh";
  GraphModel model = build(spec);
  const at::Tensor input = integers({2, 4});
  EXPECT_TRUE(at::equal(model.forward(input, {})[0],
                        linear(model, "layer1", linear(model, "layer0", input).tanh())));
}

TEST(GraphModelTest, DropoutDrawsFromLibTorchsGeneratorInTrainingOnly) {
  GraphModel model = build(graph({{"scale", "scale 64"}, {"drop", "dropout 0.5"}}));
  const at::Tensor input = torch::ones({1, 64});
  torch::manual_seed(3);
  const at::Tensor first = model.forward(input, {})[0];
  EXPECT_FALSE(at::equal(model.forward(input, {})[0], first));
  torch::manual_seed(3);
  EXPECT_TRUE(at::equal(model.forward(input, {})[0], first));
  model.eval();
  EXPECT_TRUE(at::equal(model.forward(input, {})[0], input));
}

TEST(GraphModelTest, BatchNormRefusesTheVarianceOfOneValue) {
  GraphModel model = build(graph({{"norm", "batch_norm 4"}}));
  EXPECT_THROW(model.forward(torch::ones({1, 4}), {}), UsageError);
  EXPECT_NO_THROW(model.forward(torch::ones({2, 4}), {}));
  model.eval();
  EXPECT_NO_THROW(model.forward(torch::ones({1, 4}), {}));
}

TEST(GraphModelTest, RefusesADescriptionThatTheCheckFindsFaultWith) {
  ModelSpec spec;
  spec.widths = {4};
  EXPECT_THROW(build(spec), UsageError);
}

// What LibTorch lists, with tensors that appear twice left out, is what the names promise.
TEST(GraphModelTest, RegistersWhatTheNamesPromise) {
  ModelSpec spec = graph({{"table", "embedding 8 4"},
                          {"inner", "linear 4 4"},
                          {"again", "same inner"},
                          {"norm", "layer_norm 4"},
                          {"out", "linear 4 8"}});
  spec.tied = {{"out.weight", "table.weight"}, {"norm.bias", "inner.bias"}};
  const GraphModel model = build(spec);
  std::vector<std::string> names;
  std::set<const void*> seen;
  for (const auto& item : model.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) {
      names.push_back(item.key());
    }
  }
  EXPECT_EQ(names, parameter_names(spec));
  std::vector<std::string> children;
  for (const auto& item : model.named_children()) {
    children.push_back(item.key());
  }
  EXPECT_EQ(children, block_names(spec));
  const ModelSpec buffered = graph({{"a", "batch_norm 4"}, {"b", "batch_norm 4"}});
  EXPECT_EQ(build(buffered).named_buffers().keys(), buffer_names(buffered));
}

TEST(GraphModelTest, SameSharesTheModuleUnderBothNames) {
  GraphModel model = build(graph({{"first", "linear 4 4"}, {"second", "same first"}}));
  EXPECT_TRUE(parameter(model, "first.weight").is_same(parameter(model, "second.weight")));
  const at::Tensor input = integers({2, 4});
  EXPECT_TRUE(at::equal(model.forward(input, {})[0],
                        linear(model, "first", linear(model, "first", input))));
}

TEST(GraphModelTest, ATieMakesTheSecondParameterTheFirst) {
  const ModelSpec untied = graph({{"table", "embedding 8 4"}, {"out", "linear 4 8"}});
  for (const auto& pair : {std::vector<std::string>{"table.weight", "out.weight"},
                           std::vector<std::string>{"out.weight", "table.weight"}}) {
    ModelSpec spec = untied;
    spec.tied = {pair};
    GraphModel model = build(spec);
    EXPECT_TRUE(parameter(model, "out.weight").is_same(parameter(model, "table.weight")));
    EXPECT_TRUE(at::equal(parameter(model, "out.weight"), parameter(build(untied), pair[0])));
    // Both uses reach the one gradient: each column of `out` sees the sum of the inputs of `out`.
    model.forward(torch::zeros({1, 1}, torch::kLong), {})[0].sum().backward();
    const at::Tensor weight = parameter(model, "out.weight").detach();
    at::Tensor expected = weight[0].expand({8, 4}).clone();
    expected[0] += weight.sum(0);
    EXPECT_TRUE(at::allclose(parameter(model, "out.weight").grad(), expected, 1e-5, 1e-6));
  }
}

TEST(GraphModelTest, FreezesParametersAndWholeBlocks) {
  ModelSpec spec = branching();
  spec.frozen = {"trunk", "left.bias"};
  GraphModel model = build(spec);
  for (const auto& item : model.named_parameters()) {
    const bool frozen =
        item.key() == "trunk.weight" || item.key() == "trunk.bias" || item.key() == "left.bias";
    EXPECT_EQ(item.value().requires_grad(), !frozen) << item.key();
  }
}

TEST(GraphModelTest, FreezingOneNameOfATensorFreezesTheTensor) {
  ModelSpec spec = graph({{"a", "linear 4 4"}, {"b", "same a"}, {"c", "linear 4 4"}});
  spec.tied = {{"a.weight", "c.weight"}};
  spec.frozen = {"c.weight", "b.bias"};
  const GraphModel model = build(spec);
  EXPECT_FALSE(parameter(model, "a.weight").requires_grad());
  EXPECT_FALSE(parameter(model, "a.bias").requires_grad());
  EXPECT_TRUE(parameter(model, "c.bias").requires_grad());
}

TEST(GraphModelInitTest, DependsOnSeedAndInitRankAlone) {
  const ModelSpec spec = branching();
  const at::Tensor weight = parameter(GraphModel(spec, false, 7, 0), "text.weight");
  EXPECT_TRUE(at::equal(parameter(GraphModel(spec, false, 7, 0), "text.weight"), weight));
  EXPECT_FALSE(at::equal(parameter(GraphModel(spec, false, 8, 0), "text.weight"), weight));
  EXPECT_FALSE(at::equal(parameter(GraphModel(spec, false, 7, 1), "text.weight"), weight));
  EXPECT_FALSE(at::equal(parameter(GraphModel(spec, false, 7, 0), "vision.weight"), weight));
}

TEST(GraphModelInitTest, LeavesLibTorchsGeneratorAlone) {
  torch::manual_seed(3);
  const at::Tensor expected = torch::rand({4});
  torch::manual_seed(3);
  build(graph({{"conv", "conv2d 1 2 3"},
               {"norm", "batch_norm 2"},
               {"flat", "flatten"},
               {"drop", "dropout 0.5"},
               {"out", "linear 32 2"}}));
  EXPECT_TRUE(at::equal(torch::rand({4}), expected));
}

TEST(GraphModelInitTest, FollowsLibTorchsRanges) {
  const GraphModel model = build(graph({{"conv", "conv2d 4 16 3"},
                                        {"bn", "batch_norm 16"},
                                        {"flat", "flatten"},
                                        {"lin", "linear 256 64"},
                                        {"scale", "scale 64"},
                                        {"ln", "layer_norm 64"}}));
  const auto expect_uniform = [&model](const std::string& name, double bound) {
    const at::Tensor values = parameter(model, name);
    // Of n uniform draws the largest misses the bound by more than a fifth with 0.8^n.
    EXPECT_LE(values.abs().max().item<double>(), bound) << name;
    EXPECT_GE(values.max().item<double>(), 0.6 * bound) << name;
    EXPECT_LE(values.min().item<double>(), -0.6 * bound) << name;
  };
  expect_uniform("conv.weight", 1.0 / std::sqrt(4.0 * 3 * 3));
  expect_uniform("conv.bias", 1.0 / std::sqrt(4.0 * 3 * 3));
  expect_uniform("lin.weight", 1.0 / std::sqrt(256.0));
  expect_uniform("lin.bias", 1.0 / std::sqrt(256.0));
  for (const char* name : {"bn.weight", "scale.weight", "ln.weight"}) {
    EXPECT_TRUE(parameter(model, name).eq(1).all().item<bool>()) << name;
  }
  for (const char* name : {"bn.bias", "ln.bias"}) {
    EXPECT_TRUE(parameter(model, name).eq(0).all().item<bool>()) << name;
  }
  // 4096 normal draws: the mean is within 5 / 64, the variance within 5 sqrt(2 / 4096).
  const at::Tensor table = parameter(build(graph({{"table", "embedding 64 64"}})), "table.weight");
  EXPECT_NEAR(table.mean().item<double>(), 0.0, 5.0 / 64);
  EXPECT_NEAR(table.var().item<double>(), 1.0, 5.0 * std::sqrt(2.0 / 4096));
}

TEST(GraphModelInitTest, ExactValuesAreUnits) {
  const GraphModel model(graph({{"table", "embedding 64 16"}, {"out", "linear 16 64"}}), true, 7,
                         0);
  for (const auto& item : model.named_parameters()) {
    const at::Tensor size = item.value().detach().abs();
    EXPECT_TRUE(size.eq(0).logical_or(size.eq(1)).all().item<bool>()) << item.key();
    EXPECT_TRUE(size.eq(1).any().item<bool>()) << item.key();
    EXPECT_TRUE(item.value().eq(-1).any().item<bool>()) << item.key();
  }
}

TEST(GraphModelInitTest, BothPrecisionsRoundTheSameDraws) {
  ModelSpec spec = branching();
  const at::Tensor narrow = parameter(build(spec), "left.weight");
  spec.dtype = "float64";
  const at::Tensor wide = parameter(build(spec), "left.weight");
  EXPECT_EQ(narrow.scalar_type(), at::kFloat);
  EXPECT_EQ(wide.scalar_type(), at::kDouble);
  EXPECT_TRUE(at::equal(wide.to(at::kFloat), narrow));
  EXPECT_FALSE(at::equal(wide, narrow.to(at::kDouble)));
}

TEST(GraphModelRouteTest, WithoutARouteEverythingNamedRuns) {
  ModelSpec spec = branching();
  spec.blocks.emplace_back("spare", "linear 4 4");
  GraphModel model = build(spec);
  EXPECT_EQ(reached(model, {}), of_blocks({"trunk", "left", "right", "vision", "text"}));
  EXPECT_THAT(model.heads_run(), ElementsAre(0, 1));
  EXPECT_THAT(model.blocks_run(), ElementsAre(true, true, true, true, true, false));
}

TEST(GraphModelRouteTest, InnerStagesAreAddedAndHeadsAreSeparate) {
  GraphModel model = build(branching());
  const at::Tensor input = integers({2, 4});
  const at::Tensor trunk = linear(model, "trunk", input);
  const at::Tensor inner = linear(model, "left", trunk) + linear(model, "right", trunk);
  const std::vector<at::Tensor> heads = model.forward(input, {});
  ASSERT_EQ(heads.size(), 2U);
  EXPECT_TRUE(at::equal(heads[0], linear(model, "vision", inner)));
  EXPECT_TRUE(at::equal(heads[1], linear(model, "text", inner)));
}

TEST(GraphModelRouteTest, ASkippedBranchIsLeftOutOfTheSum) {
  GraphModel model = build(branching());
  const at::Tensor input = integers({2, 4});
  const at::Tensor inner = linear(model, "right", linear(model, "trunk", input));
  EXPECT_TRUE(
      at::equal(model.forward(input, {{"left"}, "", {}, {}})[0], linear(model, "vision", inner)));
  EXPECT_EQ(reached(model, {{"left"}, "", {}, {}}),
            of_blocks({"trunk", "right", "vision", "text"}));
  EXPECT_THAT(model.blocks_run(), ElementsAre(true, false, true, true, true));
}

TEST(GraphModelRouteTest, AStageWithNothingLeftHandsItsInputOn) {
  GraphModel model = build(branching());
  const at::Tensor input = integers({2, 4});
  const at::Tensor output = model.forward(input, {{"trunk", "left", "right"}, "", {}, {}})[1];
  EXPECT_TRUE(at::equal(output, linear(model, "text", input)));
}

TEST(GraphModelRouteTest, ASkippedHeadYieldsNothing) {
  GraphModel model = build(branching());
  EXPECT_EQ(reached(model, {{"vision"}, "", {}, {}}),
            of_blocks({"trunk", "left", "right", "text"}));
  EXPECT_THAT(model.heads_run(), ElementsAre(1));
  EXPECT_EQ(model.forward(integers({2, 4}), {{"vision"}, "", {}, {}}).size(), 1U);
}

TEST(GraphModelRouteTest, TheOnlyHeadSkippedHandsItsInputOn) {
  GraphModel model = build(graph({{"a", "linear 4 4"}, {"b", "linear 4 4"}}));
  const at::Tensor input = integers({2, 4});
  EXPECT_TRUE(at::equal(model.forward(input, {{"b"}, "", {}, {}})[0], linear(model, "a", input)));
  EXPECT_THAT(model.heads_run(), ElementsAre(0));
}

TEST(GraphModelRouteTest, AnEarlyExitYieldsItsStageAsHeadZero) {
  GraphModel model = build(branching());
  const at::Tensor input = integers({2, 4});
  const at::Tensor trunk = linear(model, "trunk", input);
  const std::vector<at::Tensor> outputs = model.forward(input, {{}, "left", {}, {}});
  ASSERT_EQ(outputs.size(), 1U);
  EXPECT_TRUE(at::equal(outputs[0], linear(model, "left", trunk) + linear(model, "right", trunk)));
  EXPECT_THAT(model.heads_run(), ElementsAre(0));
  EXPECT_EQ(reached(model, {{}, "left", {}, {}}), of_blocks({"trunk", "left", "right"}));
  EXPECT_EQ(reached(model, {{"right"}, "left", {}, {}}), of_blocks({"trunk", "left"}));
}

TEST(GraphModelRouteTest, RoutesMayAlternate) {
  GraphModel model = build(branching());
  for (int repetition = 0; repetition < 2; ++repetition) {
    EXPECT_EQ(reached(model, {{"left"}, "", {}, {}}).count("left.weight"), 0U);
    EXPECT_EQ(reached(model, {{"right"}, "", {}, {}}).count("left.weight"), 1U);
    EXPECT_EQ(reached(model, {}).size(), 10U);
  }
}

TEST(GraphModelTest, ReplacingAParameterPutsANewLeafUnderAllItsNames) {
  ModelSpec spec =
      graph({{"table", "embedding 8 4"}, {"out", "linear 4 8"}, {"end", "linear 8 8"}});
  spec.tied = {{"table.weight", "out.weight"}};
  spec.forward = {{"table"}, {"out"}};
  GraphModel model = build(spec);
  const at::Tensor old = parameter(model, "table.weight");
  const at::Tensor kept = parameter(model, "end.weight");
  model.replace_parameter("out.weight");
  const at::Tensor fresh = parameter(model, "table.weight");
  EXPECT_FALSE(fresh.is_same(old));
  EXPECT_TRUE(fresh.is_same(parameter(model, "out.weight")));
  EXPECT_TRUE(at::equal(fresh, old));
  EXPECT_TRUE(parameter(model, "end.weight").is_same(kept));
  model.forward(torch::zeros({1, 1}, torch::kLong), {})[0].sum().backward();
  EXPECT_TRUE(fresh.grad().defined());
  EXPECT_FALSE(old.grad().defined());
  EXPECT_THROW(model.replace_parameter("out.wait"), UsageError);
}

}  // namespace
}  // namespace lockstep::harness
