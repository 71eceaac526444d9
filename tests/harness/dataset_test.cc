// SPDX-License-Identifier: Apache-2.0
// Data sets, losses, and the claim that exact cases do not round.
#include "harness/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cfenv>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "core/error.h"
#include "harness/exact_data.h"
#include "harness/graph_model.h"
#include "harness/losses.h"
#include "harness/optimizer.h"

namespace lockstep::harness {
namespace {

using ::testing::ElementsAre;

std::vector<std::int64_t> first(std::int64_t count) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
  std::iota(samples.begin(), samples.end(), std::int64_t{0});
  return samples;
}

Case mlp_case(std::vector<std::int64_t> widths) {
  Case value;
  value.model.widths = std::move(widths);
  return value;
}

Case graph_case(std::vector<std::pair<std::string, std::string>> blocks) {
  Case value;
  value.model.kind = "graph";
  value.model.blocks = std::move(blocks);
  return value;
}

TEST(DatasetTest, GivenNumbersRepeatSampleAfterSample) {
  Case value = mlp_case({2, 1});
  value.data.inputs = {1, 2, 3};
  value.data.targets = {7, 8};
  const Dataset data(value);
  const at::Tensor inputs = data.inputs({0, 1, 2});
  EXPECT_TRUE(inputs.equal(torch::tensor({{1.0F, 2.0F}, {3.0F, 1.0F}, {2.0F, 3.0F}})));
  EXPECT_TRUE(data.targets(0, {0, 1, 2}).equal(torch::tensor({{7.0F}, {8.0F}, {7.0F}})));
  EXPECT_EQ(data.inputs({}).size(0), 0);
}

TEST(DatasetTest, TheGradientOfTheInputIsALossWithoutTheOutput) {
  // y = w x^2 + b with w = 0.5: dy/dx = 2 w x, so the loss is 1 + 4 for x = 1 and 2, and its
  // derivative by w is 8 w x^2, in all 4 + 16.
  for (const bool anchored : {false, true}) {
    const at::Tensor w = torch::full({1}, 0.5, torch::requires_grad());
    const at::Tensor b = torch::zeros({1}, torch::requires_grad());
    const at::Tensor x = torch::tensor({1.0F, 2.0F}).requires_grad_();
    const std::string loss = anchored ? "anchored_input_gradient" : "input_gradient";
    const at::Tensor value = input_gradient_loss(loss, w * x * x + b, x);
    value.backward();
    EXPECT_EQ(value.item<float>(), 5.0F);
    EXPECT_EQ(w.grad().item<float>(), 20.0F);
    EXPECT_EQ(b.grad().defined(), anchored);
  }
}

TEST(DatasetTest, HasTheShapesOfTheModel) {
  const Dataset features(mlp_case({8, 4}));
  EXPECT_THAT(features.inputs({3, 1}).sizes(), ElementsAre(2, 8));
  EXPECT_THAT(features.targets(0, {3, 1}).sizes(), ElementsAre(2, 4));
  EXPECT_EQ(features.num_heads(), 1);

  const Dataset tokens(graph_case({{"table", "embedding 16 4"}, {"out", "linear 4 3"}}));
  EXPECT_THAT(tokens.inputs({0}).sizes(), ElementsAre(1, 4));
  EXPECT_EQ(tokens.inputs({0}).scalar_type(), at::kLong);
  EXPECT_THAT(tokens.targets(0, {0}).sizes(), ElementsAre(1, 4, 3));

  Case heads = graph_case({{"conv", "conv2d 1 2 3"}, {"a", "flatten"}, {"b", "relu"}});
  heads.model.forward = {{"conv"}, {"a", "b"}};
  const Dataset image(heads);
  EXPECT_THAT(image.inputs({0, 1, 2}).sizes(), ElementsAre(3, 1, 6, 6));
  EXPECT_EQ(image.num_heads(), 2);
  EXPECT_THAT(image.targets(0, {0}).sizes(), ElementsAre(1, 32));
  EXPECT_THAT(image.targets(1, {0}).sizes(), ElementsAre(1, 2, 4, 4));
}

TEST(DatasetTest, RowsAreTheSamplesAskedFor) {
  const Dataset data(mlp_case({8, 4}));
  const at::Tensor all = data.inputs(first(64));
  EXPECT_TRUE(at::equal(data.inputs({5, 0, 5}), torch::stack({all[5], all[0], all[5]})));
  EXPECT_THROW(data.inputs({64}), UsageError);
  EXPECT_THROW(data.targets(0, {-1}), UsageError);
  EXPECT_THROW(data.targets(1, {0}), UsageError);
}

TEST(DatasetTest, DependsOnTheSeedAndNotOnTheNumberOfSamples) {
  Case value = mlp_case({8, 4});
  const Dataset data(value);
  EXPECT_TRUE(at::equal(Dataset(value).inputs(first(64)), data.inputs(first(64))));
  EXPECT_TRUE(at::equal(Dataset(value).targets(0, first(64)), data.targets(0, first(64))));
  value.data.samples = 16;
  EXPECT_TRUE(at::equal(Dataset(value).inputs(first(16)), data.inputs(first(16))));
  EXPECT_TRUE(at::equal(Dataset(value).targets(0, first(16)), data.targets(0, first(16))));
  value.seed = 2;
  EXPECT_FALSE(at::equal(Dataset(value).inputs(first(16)), data.inputs(first(16))));
}

TEST(DatasetTest, ConvertsRatherThanDrawsForAnotherPrecision) {
  const Dataset narrow(mlp_case({8, 4}));
  const Dataset wide = narrow.to("float64");
  EXPECT_EQ(wide.inputs({0}).scalar_type(), at::kDouble);
  EXPECT_TRUE(at::equal(wide.inputs(first(64)), narrow.inputs(first(64)).to(at::kDouble)));
  EXPECT_TRUE(at::equal(wide.targets(0, first(64)), narrow.targets(0, first(64)).to(at::kDouble)));
  const Dataset tokens(graph_case({{"table", "embedding 16 4"}}));
  EXPECT_EQ(tokens.to("float64").inputs({0}).scalar_type(), at::kLong);
}

TEST(DatasetTest, InputsHaveUnitVarianceAndTokensCoverTheVocabulary) {
  Case value = mlp_case({8, 4});
  value.data.samples = 512;
  // 4096 uniform draws: the mean is within 5 / 64; squares have the variance 4 / 5.
  const at::Tensor inputs = Dataset(value).inputs(first(512));
  EXPECT_NEAR(inputs.mean().item<double>(), 0.0, 5.0 / 64);
  EXPECT_NEAR(inputs.pow(2).mean().item<double>(), 1.0, 5.0 * std::sqrt(0.8 / 4096));
  EXPECT_LE(inputs.abs().max().item<double>(), std::sqrt(3.0) + 1e-6);
  // 256 draws of 4 tokens: one is missed with probability below 4 * 0.75^256.
  const at::Tensor tokens =
      Dataset(graph_case({{"table", "embedding 4 4"}})).inputs(first(64)).flatten();
  EXPECT_EQ(tokens.min().item<std::int64_t>(), 0);
  EXPECT_EQ(tokens.max().item<std::int64_t>(), 3);
}

// The best linear map leaves the noise: 0.01 of variance, less what 8 inputs fit of it.
TEST(DatasetTest, RegressionTargetsAreALinearMapPlusNoise) {
  Case value = mlp_case({8, 4});
  value.model.dtype = "float64";
  value.data.samples = 512;
  const Dataset data(value);
  const at::Tensor inputs = data.inputs(first(512));
  const at::Tensor targets = data.targets(0, first(512));
  const at::Tensor normal = inputs.t().mm(inputs);
  const at::Tensor map = torch::inverse(normal).mm(inputs.t().mm(targets));
  const double left = (targets - inputs.mm(map)).pow(2).mean().item<double>();
  EXPECT_NEAR(left, 0.01, 0.002);
  EXPECT_GT(targets.var().item<double>(), 0.2);
}

TEST(DatasetTest, ClassesAreIdsOfEveryOutput) {
  Case value = mlp_case({8, 4});
  value.data.kind = "classification";
  const at::Tensor targets = Dataset(value).targets(0, first(64));
  EXPECT_EQ(targets.scalar_type(), at::kLong);
  EXPECT_THAT(targets.sizes(), ElementsAre(64));
  EXPECT_GE(targets.min().item<std::int64_t>(), 0);
  EXPECT_LE(targets.max().item<std::int64_t>(), 3);
  EXPECT_GE(std::get<0>(at::_unique(targets)).numel(), 2);

  value = graph_case({{"table", "embedding 16 4"}, {"out", "linear 4 3"}});
  value.data.kind = "classification";
  EXPECT_THAT(Dataset(value).targets(0, first(8)).sizes(), ElementsAre(8, 4));
}

/// Trains on the whole data set and returns the first and the last loss.
std::pair<double, double> train(const Case& value, int steps) {
  GraphModel model(value.model, value.data.exact, value.seed, 0);
  const Dataset data(value);
  Optimizer optimizer(value.train.optimizer, model.parameters());
  std::pair<double, double> losses;
  for (int step = 0; step < steps; ++step) {
    model.zero_grad();
    const std::vector<std::int64_t> samples = first(value.data.samples);
    const at::Tensor loss =
        head_loss(value.train.loss, value.train.reduction,
                  model.forward(data.inputs(samples), {})[0], data.targets(0, samples));
    loss.backward();
    optimizer.step();
    (step == 0 ? losses.first : losses.second) = loss.item<double>();
  }
  return losses;
}

TEST(DatasetTest, LossesFall) {
  Case regression = mlp_case({8, 16, 4});
  const auto [first_mse, last_mse] = train(regression, 200);
  EXPECT_LT(last_mse, 0.2 * first_mse);
  Case classification = mlp_case({8, 16, 4});
  classification.data.kind = "classification";
  classification.train.loss = "cross_entropy";
  classification.train.optimizer.lr = 0.5;
  const auto [first_entropy, last_entropy] = train(classification, 200);
  EXPECT_LT(last_entropy, 0.5 * first_entropy);
}

TEST(HeadLossTest, FollowsItsFormula) {
  const at::Tensor output = torch::tensor({{1.0, 2.0}, {3.0, -1.0}});
  const at::Tensor target = torch::tensor({{0.0, 4.0}, {1.0, 1.0}});
  // Differences 1, -2, 2, -2; products 0, 8, 3, -1.
  const auto loss = [&](const char* name, const char* reduction) {
    return head_loss(name, reduction, output, target).item<double>();
  };
  EXPECT_EQ(loss("mse", "sum"), 1.0 + 4.0 + 4.0 + 4.0);
  EXPECT_EQ(loss("mse", "mean"), 13.0 / 4);
  EXPECT_EQ(loss("dot", "sum"), 10.0);
  EXPECT_EQ(loss("dot", "mean"), 10.0 / 2);
  EXPECT_THROW(loss("l1", "sum"), UsageError);
  EXPECT_THROW(loss("mse", "none"), UsageError);
}

TEST(HeadLossTest, CrossEntropyIsTheLogOfTheShareOfTheTarget) {
  const at::Tensor output = torch::tensor({{0.0, 0.0}, {std::log(3.0), 0.0}}, torch::kDouble);
  const at::Tensor target = torch::tensor({1, 0}, torch::kLong);
  const double sum = std::log(2.0) - std::log(3.0 / 4.0);
  EXPECT_NEAR(head_loss("cross_entropy", "sum", output, target).item<double>(), sum, 1e-12);
  EXPECT_NEAR(head_loss("cross_entropy", "mean", output, target).item<double>(), sum / 2, 1e-12);
  // Tokens are samples of their own.
  EXPECT_NEAR(head_loss("cross_entropy", "mean", output.reshape({1, 2, 2}), target.reshape({1, 2}))
                  .item<double>(),
              sum / 2, 1e-12);
}

TEST(ExactScaleTest, MakesAStepMoveWeightsByUnits) {
  Case value = mlp_case({8, 4});
  value.world.ranks = 4;
  value.train.batch_per_rank = 8;
  value.train.optimizer.lr = 0.125;
  value.train.loss = "dot";
  // Targets times lr / (4 * 8) are 1.
  EXPECT_EQ(exact_scale(value, 4).target, 256.0);
  EXPECT_EQ(exact_scale(value, 4).input, 1.0);
  value.train.reduction = "sum";
  EXPECT_EQ(exact_scale(value, 4).target, 32.0);
  value.train.scale_loss_by_world_size = true;
  EXPECT_EQ(exact_scale(value, 4).target, 8.0);
  value.train.loss = "mse";
  // Input times target times 2 lr is 1 but for two bits of headroom.
  EXPECT_EQ(exact_scale(value, 4).input * exact_scale(value, 4).target, 1.0);
  value.train.optimizer.lr = 0.0;
  EXPECT_EQ(exact_scale(value, 4).input, 0.5);
}

/// True if nothing rounds in `value.train.steps` steps, neither where one process takes the global
/// batch nor where it adds up what every rank would contribute.
bool stays_exact(const Case& value) {
  for (const std::int64_t parts : {std::int64_t{1}, value.world.ranks}) {
    GraphModel model(value.model, value.data.exact, value.seed, 0);
    const Dataset data(value);
    Optimizer optimizer(value.train.optimizer, model.parameters());
    const std::int64_t per_part = value.world.ranks * value.train.batch_per_rank / parts;
    std::int64_t next = 0;
    std::feclearexcept(FE_ALL_EXCEPT);
    for (std::int64_t step = 0; step < value.train.steps; ++step) {
      model.zero_grad();
      for (std::int64_t part = 0; part < parts; ++part) {
        std::vector<std::int64_t> samples(static_cast<std::size_t>(per_part));
        for (std::int64_t& sample : samples) {
          sample = next++ % value.data.samples;
        }
        const at::Tensor loss =
            head_loss(value.train.loss, value.train.reduction,
                      model.forward(data.inputs(samples), {})[0], data.targets(0, samples));
        (loss / static_cast<double>(parts)).backward();
      }
      optimizer.step();
    }
    if (std::fetestexcept(FE_INEXACT) != 0) {
      return false;
    }
  }
  return true;
}

Case exact_case(Case value, const std::string& loss, std::int64_t steps) {
  value.data.exact = true;
  value.train.loss = loss;
  value.train.steps = steps;
  value.train.optimizer.lr = 0.125;
  return value;
}

Case with_ranks(Case value, std::int64_t ranks, std::int64_t batch_per_rank) {
  value.world.ranks = ranks;
  value.train.batch_per_rank = batch_per_rank;
  return value;
}

TEST(ExactDataTest, DocumentedCasesStayExact) {
  const Case chain = mlp_case({8, 16, 4});
  Case bare = chain;
  bare.model.bias = false;
  Case single = mlp_case({8, 4});
  Case bare_single = single;
  bare_single.model.bias = false;
  const Case deep = mlp_case({8, 16, 16, 4});
  const Case table = graph_case({{"table", "embedding 16 4"}, {"out", "linear 4 4"}});
  const Case image = graph_case(
      {{"conv", "conv2d 1 4 3"}, {"act", "relu"}, {"flat", "flatten"}, {"out", "linear 64 4"}});
  const std::vector<Case> cases = {
      with_ranks(exact_case(single, "dot", 8), 4, 8),
      with_ranks(exact_case(chain, "dot", 8), 2, 4),
      with_ranks(exact_case(chain, "dot", 4), 4, 8),
      with_ranks(exact_case(bare, "dot", 5), 4, 8),
      with_ranks(exact_case(deep, "dot", 3), 2, 4),
      with_ranks(exact_case(deep, "dot", 2), 4, 8),
      with_ranks(exact_case(table, "dot", 4), 4, 8),
      with_ranks(exact_case(image, "dot", 3), 4, 8),
      with_ranks(exact_case(single, "mse", 2), 2, 4),
      with_ranks(exact_case(bare_single, "mse", 3), 4, 8),
      with_ranks(exact_case(bare, "mse", 2), 2, 4),
      with_ranks(exact_case(chain, "mse", 1), 4, 8),
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      Case value = cases[i];
      value.seed = seed;
      EXPECT_TRUE(stays_exact(value)) << "case " << i << " seed " << seed;
    }
  }
}

TEST(ExactDataTest, EveryDyadicLearningRateAndReductionWillDo) {
  for (const double lr : {1.0 / 1024, 0.5, 8.0}) {
    for (const char* reduction : {"mean", "sum"}) {
      Case value = with_ranks(exact_case(mlp_case({8, 16, 4}), "dot", 3), 4, 8);
      value.train.optimizer.lr = lr;
      value.train.reduction = reduction;
      value.train.optimizer.momentum = 0.5;
      EXPECT_TRUE(stays_exact(value)) << lr << " " << reduction;
    }
  }
}

TEST(ExactDataTest, InexactCasesAreSeen) {
  const Case sound = with_ranks(exact_case(mlp_case({8, 16, 4}), "dot", 3), 4, 8);
  ASSERT_TRUE(stays_exact(sound));
  Case decimal_lr = sound;
  decimal_lr.train.optimizer.lr = 0.1;
  EXPECT_FALSE(stays_exact(decimal_lr));
  EXPECT_FALSE(stays_exact(with_ranks(sound, 3, 8)));
  EXPECT_FALSE(stays_exact(with_ranks(sound, 4, 6)));
  Case adam = sound;
  adam.train.optimizer.kind = "adam";
  EXPECT_FALSE(stays_exact(adam));
  Case usual_data = sound;
  usual_data.data.exact = false;
  EXPECT_FALSE(stays_exact(usual_data));
  Case too_many_bits = sound;
  too_many_bits.train.loss = "mse";
  EXPECT_FALSE(stays_exact(too_many_bits));
}

// Exact cases would be worthless if their gradients were all zero.
TEST(ExactDataTest, EveryParameterLearns) {
  const Case value = with_ranks(exact_case(mlp_case({8, 16, 4}), "dot", 1), 4, 8);
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    GraphModel model(value.model, true, seed, 0);
    Case seeded = value;
    seeded.seed = seed;
    const Dataset data(seeded);
    head_loss("dot", "mean", model.forward(data.inputs(first(32)), {})[0],
              data.targets(0, first(32)))
        .backward();
    for (const auto& item : model.named_parameters()) {
      EXPECT_TRUE(item.value().grad().ne(0).any().item<bool>()) << item.key() << " seed " << seed;
    }
  }
}

}  // namespace
}  // namespace lockstep::harness
