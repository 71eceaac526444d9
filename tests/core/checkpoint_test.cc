// SPDX-License-Identifier: Apache-2.0
// Checkpoints against the same computation without them, on one rank.
#include "core/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "core/error.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::vector<at::Tensor>;

at::Tensor waves(const std::vector<std::int64_t>& sizes, double frequency) {
  std::int64_t numel = 1;
  for (const std::int64_t extent : sizes) {
    numel *= extent;
  }
  return at::sin(at::arange(numel, at::kFloat) * frequency + 0.3).view(sizes);
}

enum class Kind { kPlain, kCheckpoint, kReentrant };

at::Tensor run_as(Kind kind, const CheckpointBody& body, const at::Tensor& input,
                  const Tensors& parameters) {
  switch (kind) {
    case Kind::kPlain:
      return body({input})[0];
    case Kind::kCheckpoint:
      return checkpoint(body, {input}, parameters)[0];
    case Kind::kReentrant:
      return checkpoint_reentrant(body, {input})[0];
  }
  throw std::logic_error("no such kind");
}

// Output, gradient of the input, gradients of weight and bias of one linear layer in a checkpoint.
Tensors layer_gradients(Kind kind) {
  const at::Tensor weight = waves({4, 3}, 1.7).requires_grad_();
  const at::Tensor bias = waves({4}, 2.3).requires_grad_();
  const at::Tensor input = waves({5, 3}, 0.7).requires_grad_();
  const at::Tensor output =
      run_as(kind,
             [&](const Tensors& inputs) {
               return Tensors{at::tanh(at::linear(inputs[0] * 2, weight, bias))};
             },
             input, {weight, bias});
  (output.square()).sum().backward();
  return {output.detach(), input.grad(), weight.grad(), bias.grad()};
}

TEST(CheckpointTest, HasTheBitsOfTheSameComputationWithoutIt) {
  const Tensors plain = layer_gradients(Kind::kPlain);
  for (const Kind kind : {Kind::kCheckpoint, Kind::kReentrant}) {
    const Tensors checkpointed = layer_gradients(kind);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(at::equal(checkpointed[i], plain[i])) << i;
    }
  }
}

// Two uses: the sum of two gradients has one rounding, in either order.
TEST(CheckpointTest, AParameterInTwoCheckpointsReceivesBothGradients) {
  const auto gradient = [](Kind kind) {
    const at::Tensor weight = waves({3, 3}, 1.7).requires_grad_();
    const auto body = [&](const Tensors& inputs) {
      return Tensors{at::tanh(inputs[0].matmul(weight))};
    };
    const at::Tensor input = waves({2, 3}, 0.7).requires_grad_();
    run_as(kind, body, run_as(kind, body, input, {weight}), {weight}).sum().backward();
    return weight.grad();
  };
  const at::Tensor plain = gradient(Kind::kPlain);
  EXPECT_TRUE(at::equal(gradient(Kind::kCheckpoint), plain));
  EXPECT_TRUE(at::equal(gradient(Kind::kReentrant), plain));
}

TEST(CheckpointTest, TheBodyRunsOnceWithoutRecordingAndOnceWithIt) {
  for (const Kind kind : {Kind::kCheckpoint, Kind::kReentrant}) {
    std::vector<bool> recorded;
    std::vector<bool> inside;
    const at::Tensor input = at::ones({2}).requires_grad_();
    const auto body = [&](const Tensors& inputs) {
      recorded.push_back(at::GradMode::is_enabled());
      inside.push_back(recomputes_without_accumulating());
      return Tensors{inputs[0] * 3};
    };
    run_as(kind, body, input, {}).sum().backward();
    EXPECT_THAT(recorded, ElementsAre(false, true));
    EXPECT_THAT(inside, ElementsAre(false, kind == Kind::kCheckpoint));
    EXPECT_FALSE(recomputes_without_accumulating());
  }
}

TEST(CheckpointTest, DropoutRepeatsItsMaskAndLeavesLaterDrawsAlone) {
  const auto run = [](Kind kind, bool preserve) {
    torch::manual_seed(7);
    const at::Tensor input = at::ones({64}).requires_grad_();
    const auto body = [](const Tensors& inputs) {
      return Tensors{at::dropout(inputs[0], 0.5, /*train=*/true)};
    };
    CheckpointOptions options;
    options.preserve_rng_state = preserve;
    at::Tensor output;
    if (kind == Kind::kPlain) {
      output = body({input})[0];
    } else if (kind == Kind::kCheckpoint) {
      output = checkpoint(body, {input}, {}, options)[0];
    } else {
      output = checkpoint_reentrant(body, {input}, options)[0];
    }
    const at::Tensor between = at::rand({4});
    output.sum().backward();
    // The gradient of dropout is its mask, scaled: the output itself, for an input of ones.
    return Tensors{output.detach(), input.grad(), between, at::rand({4})};
  };
  const Tensors plain = run(Kind::kPlain, true);
  for (const Kind kind : {Kind::kCheckpoint, Kind::kReentrant}) {
    const Tensors repeated = run(kind, true);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      EXPECT_TRUE(at::equal(repeated[i], plain[i])) << i;
    }
    EXPECT_TRUE(at::equal(repeated[0], repeated[1]));
    const Tensors drawn_anew = run(kind, false);
    EXPECT_FALSE(at::equal(drawn_anew[0], drawn_anew[1]));
  }
}

// One output does not reach the loss, another is the input itself, one input needs no gradient.
TEST(CheckpointTest, SeveralInputsAndOutputsAreTreatedAsByAutograd) {
  for (const bool reentrant : {false, true}) {
    const at::Tensor a = at::full({2}, 3.0).requires_grad_();
    const at::Tensor b = at::full({2}, 5.0);
    const auto body = [](const Tensors& inputs) {
      return Tensors{inputs[0] * inputs[1], inputs[0].exp(), inputs[0]};
    };
    const Tensors outputs =
        reentrant ? checkpoint_reentrant(body, {a, b}) : checkpoint(body, {a, b}, {});
    (outputs[0] + outputs[2] * 7).sum().backward();
    EXPECT_TRUE(at::equal(a.grad(), at::full({2}, 12.0)));
    EXPECT_FALSE(b.grad().defined());
    EXPECT_TRUE(a.is_leaf());
  }
}

TEST(CheckpointTest, WithoutGradModeOrGradientsTheBodyIsAllThereIs) {
  const auto twice = [](const Tensors& inputs) { return Tensors{inputs[0] * 2}; };
  EXPECT_FALSE(checkpoint(twice, {at::ones({1})}, {})[0].requires_grad());
  const at::NoGradGuard no_grad;
  const at::Tensor leaf = at::ones({1}).requires_grad_();
  EXPECT_FALSE(checkpoint(twice, {leaf}, {})[0].requires_grad());
  EXPECT_FALSE(checkpoint_reentrant(twice, {leaf})[0].requires_grad());
}

TEST(CheckpointTest, ParametersAloneSufficeForOneKindAndAreRefusedByTheOther) {
  const torch::nn::Linear layer(2, 1);
  checkpoint(layer.ptr(), at::ones({1, 2})).sum().backward();
  EXPECT_TRUE(at::equal(layer->weight.grad(), at::ones({1, 2})));
  EXPECT_THROW(checkpoint_reentrant(layer.ptr(), at::ones({1, 2})), UsageError);
}

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(CheckpointTest, ATensorThatIsNotListedIsRefusedWhetherLeafOrNot) {
  const at::Tensor input = at::ones({1}).requires_grad_();
  const at::Tensor leaf = at::ones({1}).requires_grad_();
  for (const at::Tensor& hidden : {leaf, leaf * 2}) {
    const at::Tensor output = checkpoint(
        [hidden](const Tensors& inputs) { return Tensors{inputs[0] * hidden}; }, {input}, {})[0];
    EXPECT_THAT(refusal([&] { output.backward(); }), HasSubstr("List it"));
  }
}

TEST(CheckpointTest, ABodyThatReturnsSomethingElseTheSecondTimeIsRefused) {
  for (const bool more : {false, true}) {
    int calls = 0;
    const at::Tensor input = at::ones({2}).requires_grad_();
    const at::Tensor output = checkpoint(
        [&](const Tensors& inputs) {
          if (++calls == 1) {
            return Tensors{inputs[0] * 2};
          }
          return more ? Tensors{inputs[0] * 2, inputs[0]} : Tensors{inputs[0].narrow(0, 0, 1)};
        },
        {input}, {})[0];
    EXPECT_THAT(refusal([&] { output.sum().backward(); }), HasSubstr("the same both times"));
  }
}

TEST(CheckpointTest, SecondDerivativesAndSecondBackwardsAreRefused) {
  const at::Tensor input = at::ones({1}).requires_grad_();
  const auto twice = [](const Tensors& inputs) { return Tensors{inputs[0] * 2}; };
  EXPECT_THAT(refusal([&] {
                torch::autograd::grad({checkpoint(twice, {input}, {})[0]}, {input}, {}, true, true);
              }),
              HasSubstr("create_graph"));
  const at::Tensor output = checkpoint(twice, {input}, {})[0];
  output.backward({}, /*retain_graph=*/true);
  output.backward();
  EXPECT_EQ(input.grad().item<double>(), 4);
  EXPECT_THAT(refusal([&] { output.backward(); }), HasSubstr("retain the graph"));
}

TEST(CheckpointTest, GradientsOfChosenInputsNeedTheKindThatDoesNotAccumulate) {
  const at::Tensor input = at::ones({1}).requires_grad_();
  const auto twice = [](const Tensors& inputs) { return Tensors{inputs[0] * 2}; };
  const auto gradient =
      torch::autograd::grad({checkpoint(twice, {input}, {})[0]}, {input})[0].item<double>();
  EXPECT_EQ(gradient, 2);
  EXPECT_THAT(
      refusal([&] { torch::autograd::grad({checkpoint_reentrant(twice, {input})[0]}, {input}); }),
      HasSubstr("grad()"));
}

TEST(CheckpointTest, AnInputChangedInPlaceIsNoticed) {
  const at::Tensor input = at::ones({1}).requires_grad_() * 1;
  const at::Tensor output =
      checkpoint([](const Tensors& inputs) { return Tensors{inputs[0] * 2}; }, {input}, {})[0];
  input.mul_(3);
  EXPECT_THROW(output.backward(), c10::Error);
}

}  // namespace
}  // namespace lockstep::test
