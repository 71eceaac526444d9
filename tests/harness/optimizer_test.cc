// SPDX-License-Identifier: Apache-2.0
// The optimizers against their formulas, and the state they show.
#include "harness/optimizer.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"

namespace lockstep::harness {
namespace {

constexpr double kStart = 2.0;

/// One parameter of one double, starting at kStart, driven by given gradients.
class Driver {
 public:
  explicit Driver(const OptimizerSpec& spec)
      : parameter_(torch::full({1}, kStart, torch::kDouble).requires_grad_()),
        optimizer_(spec, {parameter_}) {}

  double step(double gradient) {
    parameter_.mutable_grad() = torch::full({1}, gradient, torch::kDouble);
    optimizer_.step();
    return parameter_.item<double>();
  }

  double state(const std::string& role) const {
    for (const auto& [name, tensor] : optimizer_.state(0)) {
      if (name == role) {
        return tensor.item<double>();
      }
    }
    ADD_FAILURE() << "no state " << role;
    return 0.0;
  }

  Optimizer& optimizer() { return optimizer_; }

 private:
  at::Tensor parameter_;
  Optimizer optimizer_;
};

OptimizerSpec spec_of(const std::string& kind, double lr) {
  OptimizerSpec spec;
  spec.kind = kind;
  spec.lr = lr;
  return spec;
}

std::vector<std::string> roles_of(const Optimizer& optimizer) {
  std::vector<std::string> roles;
  for (const auto& [role, tensor] : optimizer.state(0)) {
    roles.push_back(role);
  }
  return roles;
}

TEST(OptimizerTest, PlainSgdMovesAgainstTheGradient) {
  Driver driver(spec_of("sgd", 0.25));
  EXPECT_EQ(driver.step(3.0), kStart - 0.25 * 3.0);
}

TEST(OptimizerTest, WeightDecayAddsToTheGradient) {
  OptimizerSpec spec = spec_of("sgd", 0.25);
  spec.weight_decay = 0.5;
  Driver driver(spec);
  EXPECT_EQ(driver.step(3.0), kStart - 0.25 * (3.0 + 0.5 * kStart));
}

// buf_1 = g_1, buf_t = m buf_{t-1} + (1 - dampening) g_t, p_t = p_{t-1} - lr buf_t.
TEST(OptimizerTest, MomentumAccumulatesDampenedGradients) {
  OptimizerSpec spec = spec_of("sgd", 0.25);
  spec.momentum = 0.5;
  spec.dampening = 0.25;
  Driver driver(spec);
  const double first = kStart - 0.25 * 3.0;
  EXPECT_EQ(driver.step(3.0), first);
  EXPECT_EQ(driver.state("momentum_buffer"), 3.0);
  const double buffer = 0.5 * 3.0 + 0.75 * -1.0;
  EXPECT_EQ(driver.step(-1.0), first - 0.25 * buffer);
  EXPECT_EQ(driver.state("momentum_buffer"), buffer);
}

// p_t = p_{t-1} - lr (g_t + m buf_t).
TEST(OptimizerTest, NesterovLooksAhead) {
  OptimizerSpec spec = spec_of("sgd", 0.25);
  spec.momentum = 0.5;
  spec.nesterov = true;
  Driver driver(spec);
  const double first = kStart - 0.25 * (3.0 + 0.5 * 3.0);
  EXPECT_EQ(driver.step(3.0), first);
  const double buffer = 0.5 * 3.0 - 1.0;
  EXPECT_EQ(driver.step(-1.0), first - 0.25 * (-1.0 + 0.5 * buffer));
}

// Bias correction makes the first step lr g / (|g| + eps), whatever the betas are.
TEST(OptimizerTest, TheFirstAdamStepIsTheLearningRate) {
  for (const char* kind : {"adam", "adamw"}) {
    OptimizerSpec spec = spec_of(kind, 0.25);
    spec.eps = 0.5;
    spec.betas = {0.75, 0.875};
    Driver driver(spec);
    EXPECT_NEAR(driver.step(-4.0), kStart + 0.25 * 4.0 / (4.0 + 0.5), 1e-15) << kind;
    EXPECT_EQ(driver.state("exp_avg"), 0.25 * -4.0) << kind;
    EXPECT_EQ(driver.state("exp_avg_sq"), 0.125 * 16.0) << kind;
    EXPECT_EQ(driver.state("step"), 1.0) << kind;
  }
}

TEST(OptimizerTest, AdamWDecaysTheParameterAndAdamTheGradient) {
  OptimizerSpec spec = spec_of("adamw", 0.25);
  spec.weight_decay = 0.5;
  spec.eps = 0.0;
  Driver decoupled(spec);
  EXPECT_NEAR(decoupled.step(4.0), kStart * (1.0 - 0.25 * 0.5) - 0.25, 1e-15);
  spec.kind = "adam";
  Driver coupled(spec);
  EXPECT_NEAR(coupled.step(4.0), kStart - 0.25, 1e-15);
  EXPECT_NEAR(coupled.state("exp_avg"), 0.1 * (4.0 + 0.5 * kStart), 1e-15);
}

TEST(OptimizerTest, AmsgradKeepsTheLargestSecondMoment) {
  OptimizerSpec spec = spec_of("adam", 0.25);
  spec.amsgrad = true;
  spec.betas = {0.5, 0.5};
  Driver driver(spec);
  driver.step(4.0);
  driver.step(0.0);
  EXPECT_EQ(driver.state("exp_avg_sq"), 4.0);
  EXPECT_EQ(driver.state("max_exp_avg_sq"), 8.0);
}

// sum_t = sum_{t-1} + g^2; p -= lr / (1 + (t - 1) lr_decay) g / (sqrt(sum_t) + eps).
TEST(OptimizerTest, AdagradDividesByTheRootOfTheSumOfSquares) {
  OptimizerSpec spec = spec_of("adagrad", 0.25);
  spec.lr_decay = 1.0;
  spec.eps = 0.0;
  Driver driver(spec);
  EXPECT_NEAR(driver.step(3.0), kStart - 0.25, 1e-15);
  EXPECT_NEAR(driver.step(4.0), kStart - 0.25 - 0.125 * 4.0 / 5.0, 1e-15);
  EXPECT_EQ(driver.state("sum"), 25.0);
  EXPECT_EQ(driver.state("step"), 2.0);
}

// s_t = alpha s_{t-1} + (1 - alpha) g^2; buf_t = m buf_{t-1} + g / (sqrt(s_t) + eps).
TEST(OptimizerTest, RmspropDividesByTheRootOfTheRunningSquare) {
  OptimizerSpec spec = spec_of("rmsprop", 0.25);
  spec.alpha = 0.75;
  spec.eps = 0.0;
  spec.momentum = 0.5;
  Driver driver(spec);
  EXPECT_NEAR(driver.step(3.0), kStart - 0.25 * 3.0 / std::sqrt(0.25 * 9.0), 1e-15);
  EXPECT_EQ(driver.state("square_avg"), 0.25 * 9.0);
  EXPECT_NEAR(driver.state("momentum_buffer"), 2.0, 1e-15);
}

TEST(OptimizerTest, SetLrTakesEffectAtTheNextStep) {
  Driver driver(spec_of("sgd", 0.25));
  driver.optimizer().set_lr(2.0);
  EXPECT_EQ(driver.step(3.0), kStart - 2.0 * 3.0);
  EXPECT_THROW(driver.optimizer().set_lr(-1.0), UsageError);
  EXPECT_THROW(driver.optimizer().set_lr(std::nan("")), UsageError);
}

TEST(OptimizerTest, LeavesParametersWithoutGradientAlone) {
  const at::Tensor moved = torch::ones({2}).requires_grad_();
  const at::Tensor kept = torch::ones({2}).requires_grad_();
  OptimizerSpec spec = spec_of("adamw", 0.5);
  spec.weight_decay = 0.5;
  Optimizer optimizer(spec, {moved, kept});
  moved.mutable_grad() = torch::ones({2});
  optimizer.step();
  EXPECT_FALSE(at::equal(moved, torch::ones({2})));
  EXPECT_TRUE(at::equal(kept, torch::ones({2})));
  EXPECT_TRUE(optimizer.state(0)[0].second.defined());
  EXPECT_FALSE(optimizer.state(1)[0].second.defined());
}

TEST(OptimizerStateTest, RolesAreFixedBeforeAndAfterTheFirstStep) {
  struct Expected {
    std::string kind;
    bool momentum;
    bool amsgrad;
    std::vector<std::string> roles;
  };
  const std::vector<Expected> cases = {
      {"sgd", false, false, {}},
      {"sgd", true, false, {"momentum_buffer"}},
      {"adam", false, false, {"exp_avg", "exp_avg_sq", "step"}},
      {"adam", false, true, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"}},
      {"adamw", false, true, {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "step"}},
      {"adagrad", false, false, {"sum", "step"}},
      {"rmsprop", false, false, {"square_avg", "step"}},
      {"rmsprop", true, false, {"square_avg", "momentum_buffer", "step"}},
  };
  for (const Expected& expected : cases) {
    OptimizerSpec spec = spec_of(expected.kind, 0.5);
    spec.momentum = expected.momentum ? 0.5 : 0.0;
    spec.amsgrad = expected.amsgrad;
    Driver driver(spec);
    EXPECT_EQ(roles_of(driver.optimizer()), expected.roles) << expected.kind;
    driver.step(1.0);
    EXPECT_EQ(roles_of(driver.optimizer()), expected.roles) << expected.kind;
    for (const auto& [role, tensor] : driver.optimizer().state(0)) {
      EXPECT_TRUE(tensor.defined()) << expected.kind << " " << role;
    }
  }
}

TEST(OptimizerStateTest, StepIsAnInt64Scalar) {
  Driver driver(spec_of("adam", 0.5));
  driver.step(1.0);
  driver.step(1.0);
  const at::Tensor step = driver.optimizer().state(0).back().second;
  EXPECT_EQ(step.scalar_type(), at::kLong);
  EXPECT_EQ(step.dim(), 0);
  EXPECT_EQ(step.item<std::int64_t>(), 2);
}

TEST(OptimizerStateTest, RefusesAnIndexOutOfRange) {
  Driver driver(spec_of("adam", 0.5));
  EXPECT_THROW(driver.optimizer().state(1), UsageError);
  EXPECT_THROW(driver.optimizer().state(-1), UsageError);
}

TEST(OptimizerTest, RefusesOptionsOutOfRange) {
  const std::vector<std::function<void(OptimizerSpec&)>> mistakes = {
      [](OptimizerSpec& spec) { spec.kind = "lion"; },
      [](OptimizerSpec& spec) { spec.lr = -0.5; },
      [](OptimizerSpec& spec) { spec.lr = std::nan(""); },
      [](OptimizerSpec& spec) { spec.momentum = -0.5; },
      [](OptimizerSpec& spec) { spec.weight_decay = -0.5; },
      [](OptimizerSpec& spec) { spec.lr_decay = -0.5; },
      [](OptimizerSpec& spec) { spec.eps = -0.5; },
      [](OptimizerSpec& spec) { spec.alpha = 1.0; },
      [](OptimizerSpec& spec) { spec.betas = {0.5}; },
      [](OptimizerSpec& spec) {
        spec.betas = {0.5, 1.0};
      },
      [](OptimizerSpec& spec) { spec.nesterov = true; },
      [](OptimizerSpec& spec) { spec.nesterov = true, spec.momentum = 0.5, spec.dampening = 0.5; },
  };
  for (std::size_t i = 0; i < mistakes.size(); ++i) {
    OptimizerSpec spec;
    mistakes[i](spec);
    EXPECT_THROW(Optimizer(spec, {torch::ones({1})}), UsageError) << i;
  }
}

}  // namespace
}  // namespace lockstep::harness
