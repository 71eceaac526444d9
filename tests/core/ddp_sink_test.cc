// SPDX-License-Identifier: Apache-2.0
// The node between outputs and loss.
#include "core/ddp_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

namespace lockstep::test {
namespace {

TEST(DdpSinkTest, GradientsPassUnchangedAndOnce) {
  const at::Tensor leaf = torch::ones({3}, at::requires_grad());
  at::Tensor output = leaf * 2;
  int calls = 0;
  attach_sink({&output}, [&calls] { ++calls; });
  (output * 5).sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(leaf.grad().equal(at::full({3}, 10.0)));
}

// exp() saves its result for backward; changing the output in place would break it without clone.
TEST(DdpSinkTest, ChangingAnOutputInPlaceIsSafe) {
  const at::Tensor leaf = torch::zeros({3}, at::requires_grad());
  at::Tensor output = leaf.exp();
  attach_sink({&output}, [] {});
  output.mul_(3);
  output.sum().backward();
  EXPECT_TRUE(leaf.grad().equal(at::full({3}, 3.0)));
}

// The accumulator of an unused output's leaf runs, without a gradient.
TEST(DdpSinkTest, AnOutputOutsideTheLossSendsAnUndefinedGradient) {
  const at::Tensor used = torch::ones({1}, at::requires_grad());
  const at::Tensor unused = torch::ones({1}, at::requires_grad());
  at::Tensor first = used * 2;
  at::Tensor second = unused * 2;
  struct Hook : torch::autograd::FunctionPostHook {
    explicit Hook(int& calls) : calls_(calls) {}
    torch::autograd::variable_list operator()(
        const torch::autograd::variable_list& outputs,
        const torch::autograd::variable_list& inputs) override {
      calls_ += inputs.at(0).defined() ? 100 : 1;
      return outputs;
    }
    int& calls_;
  };
  int calls = 0;
  const auto accumulator = torch::autograd::impl::grad_accumulator(unused);
  accumulator->add_post_hook(std::make_unique<Hook>(calls));
  attach_sink({&first, &second}, [] {});
  first.sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(unused.grad().defined());
  EXPECT_TRUE(used.grad().defined());
}

TEST(DdpSinkTest, AnOutputWithoutAGraphRequiresGradAfterwards) {
  at::Tensor output = at::ones({2});
  int calls = 0;
  attach_sink({&output}, [&calls] { ++calls; });
  EXPECT_TRUE(output.requires_grad());
  output.sum().backward();
  EXPECT_EQ(calls, 1);
}

TEST(DdpSinkTest, SecondOrderGradientsPassThrough) {
  const at::Tensor leaf = torch::full({1}, 3.0, at::requires_grad());
  at::Tensor output = leaf * leaf * leaf;
  attach_sink({&output}, [] {});
  const at::Tensor first = torch::autograd::grad({output}, {leaf}, {}, true, true)[0];
  const at::Tensor second = torch::autograd::grad({first}, {leaf})[0];
  EXPECT_EQ(first.item<double>(), 27.0);   // 3 x^2
  EXPECT_EQ(second.item<double>(), 18.0);  // 6 x
}

}  // namespace
}  // namespace lockstep::test
