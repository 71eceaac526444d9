// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm as a module: modes, collectives, errors, under DDP, conversion.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "core/distributed_data_parallel.h"
#include "core/error.h"
#include "core/sync_batch_norm.h"
#include "tests/core/whole_batch_norm.h"
#include "tests/support/run_ranks.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SyncBatchNormModuleTest, OneRankAloneHasTheBitsOfBatchNormAndIssuesNothing) {
  const Batch batch{{6}, {2}};
  const NormResult whole = whole_batch(batch);
  const auto ranks = run_ranks(1, [&](LocalCommunicator& communicator) {
    SyncBatchNorm norm(batch.options(), communicator);
    prepare(norm);
    const NormResult result = differentiate(norm, batch.whole(1.7), batch.whole(0.9));
    EXPECT_TRUE(communicator.log().empty());
    return result;
  });
  EXPECT_TRUE(at::equal(ranks[0].output, whole.output));
  EXPECT_TRUE(at::equal(ranks[0].input_gradient, whole.input_gradient));
  EXPECT_TRUE(at::equal(ranks[0].running_var, whole.running_var));
}

TEST(SyncBatchNormModuleTest, EvaluationIsBatchNormAndIssuesNothing) {
  for (const bool tracks : {true, false}) {
    const Batch batch{{4, 2}, {}};
    const auto options = batch.options().track_running_stats(tracks);
    WholeBatchNorm local(options);
    prepare(local);
    local->eval();
    const auto outputs = run_ranks(2, [&](LocalCommunicator& communicator) {
      SyncBatchNorm norm(options, communicator);
      prepare(norm);
      norm->eval();
      const at::Tensor output = norm->forward(batch.part(batch.whole(1.7), communicator.rank()));
      EXPECT_TRUE(communicator.log().empty());
      return output;
    });
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(at::equal(outputs[static_cast<std::size_t>(rank)],
                            local->forward(batch.part(batch.whole(1.7), rank))));
    }
  }
}

TEST(SyncBatchNormModuleTest, IssuesOneGatherInForwardAndOneReductionInBackwardIfTheInputNeedsIt) {
  for (const bool needs_gradient : {true, false}) {
    const auto logs = run_ranks(2, [&](LocalCommunicator& communicator) {
      SyncBatchNorm norm(torch::nn::BatchNormOptions(kChannels), communicator);
      norm->forward(waves({2, kChannels}, 1.7).to(at::kFloat).requires_grad_(needs_gradient))
          .sum()
          .backward();
      std::vector<std::string> log;
      for (const CollectiveRecord& record : communicator.log()) {
        log.push_back(to_string(record));
      }
      return log;
    });
    std::vector<std::string> expected{"all_gather sync_batch_norm -1 step -1: 7 Double"};
    if (needs_gradient) {
      expected.emplace_back("all_reduce sync_batch_norm -1 step -1: 6 Double");
    }
    EXPECT_EQ(logs[0], expected);
  }
}

TEST(SyncBatchNormModuleTest, OneValuePerChannelInTotalIsAnErrorOnEveryRankAndUpdatesNothing) {
  std::vector<std::int64_t> tracked(3, -1);
  const auto outcomes = try_run_ranks(3, [&](LocalCommunicator& communicator) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(kChannels), communicator);
    try {
      norm->forward(at::ones({communicator.rank() == 1 ? 1 : 0, kChannels}));
    } catch (const UsageError&) {
      tracked[static_cast<std::size_t>(communicator.rank())] =
          norm->tensors.num_batches_tracked.item<std::int64_t>();
      throw;
    }
  });
  for (const auto& outcome : outcomes) {
    const auto error = outcome.error_as<UsageError>();
    ASSERT_TRUE(error.has_value());
    EXPECT_THAT(error->what(), HasSubstr("more than one value per channel"));
  }
  EXPECT_THAT(tracked, ElementsAre(0, 0, 0));
}

TEST(SyncBatchNormModuleTest, RefusesOtherChannelsAndASecondDerivative) {
  run_ranks(2, [](LocalCommunicator& communicator) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(kChannels), communicator);
    EXPECT_THROW(norm->forward(at::ones({2, kChannels + 1})), UsageError);
    EXPECT_THROW(norm->forward(at::ones({kChannels})), UsageError);
    const at::Tensor x = waves({2, kChannels}, 1.7).requires_grad_();
    try {
      torch::autograd::grad({norm->forward(x).sum()}, {x}, {}, true, /*create_graph=*/true);
      ADD_FAILURE() << "create_graph was accepted";
    } catch (const DdpError& error) {
      EXPECT_EQ(error.kind(), "create_graph");
    }
  });
}

// Under DDP.

// scale is ahead of the normalisation, so its gradient passes through all ranks' statistics.
template <typename Norm>
struct NormalizedImpl : torch::nn::Module {
  explicit NormalizedImpl(Norm norm_in)
      : scale(register_parameter("scale", torch::ones({2}))),
        norm(register_module("norm", norm_in)),
        head(register_module("head", torch::nn::Linear(2, 1))) {
    const at::NoGradGuard no_grad;
    head->weight.copy_(at::tensor({0.5, -2.0}).view({1, 2}));
    head->bias.fill_(0.25);
  }
  at::Tensor forward(const at::Tensor& x) { return head(norm(x * scale)); }
  at::Tensor scale;
  Norm norm;
  torch::nn::Linear head;
};

// The loss of the whole batch is mean(factors * output); a rank's is W times its share of that.
TEST(SyncBatchNormModuleTest, UnderDdpGradientsAreThoseOfTheWholeBatchEvenIfSharesAreUneven) {
  const at::Tensor x = signs().to(at::kFloat);
  const at::Tensor factors = at::arange(8).view({8, 1}) / 4;
  NormalizedImpl<torch::nn::BatchNorm1d> whole{torch::nn::BatchNorm1d(dyadic())};
  (factors * whole.forward(x)).mean().backward();
  for (const Sizes& lasts : {Sizes{4, 8}, Sizes{2, 8}, Sizes{4, 4, 6, 8}}) {
    const auto world_size = static_cast<std::int64_t>(lasts.size());
    const auto gradients = run_ranks(world_size, [&](LocalCommunicator& communicator) {
      using Net = NormalizedImpl<SyncBatchNorm>;
      DistributedDataParallel<Net> ddp(std::make_shared<Net>(SyncBatchNorm(dyadic(), communicator)),
                                       communicator);
      const auto rank = static_cast<std::size_t>(communicator.rank());
      const std::int64_t first = rank == 0 ? 0 : lasts[rank - 1];
      const at::Tensor output = ddp(x.slice(0, first, lasts[rank]));
      (factors.slice(0, first, lasts[rank]) * output)
          .sum()
          .mul(static_cast<double>(world_size) / 8)
          .backward();
      std::vector<at::Tensor> own;
      for (const at::Tensor& parameter : ddp.module().parameters()) {
        own.push_back(parameter.grad());
      }
      return own;
    });
    const std::vector<at::Tensor> parameters = whole.parameters();
    for (const auto& own : gradients) {
      ASSERT_EQ(own.size(), parameters.size());
      for (std::size_t i = 0; i < own.size(); ++i) {
        EXPECT_TRUE(at::equal(own[i], parameters[i].grad())) << i << '\n' << own[i];
      }
    }
  }
}

// Conversion.

// A Sequential that another one can hold.
struct BlockImpl : torch::nn::SequentialImpl {
  using torch::nn::SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return torch::nn::SequentialImpl::forward(x); }
};

TEST(SyncBatchNormModuleTest, ConversionReplacesBatchNormsInsideSequentialsAndKeepsTheirTensors) {
  run_ranks(1, [](LocalCommunicator& communicator) {
    torch::nn::BatchNorm1d first(torch::nn::BatchNormOptions(2).eps(3).momentum(c10::nullopt));
    torch::nn::BatchNorm2d second(torch::nn::BatchNormOptions(2).affine(false));
    torch::nn::BatchNorm3d third(torch::nn::BatchNormOptions(2).track_running_stats(false));
    first->weight.requires_grad_(false);
    second->eval();
    const auto inner = std::make_shared<BlockImpl>(second, third);
    torch::nn::Sequential net(torch::nn::Linear(2, 2), first, inner, first);
    EXPECT_THAT(convert_sync_batch_norm(*net, communicator), ElementsAre("1", "2.0", "2.1", "3"));

    const auto converted = net->ptr<SyncBatchNormImpl>(1);
    EXPECT_EQ(net->ptr<SyncBatchNormImpl>(3), converted);
    EXPECT_EQ(net->named_children()["1"], converted);
    EXPECT_TRUE(converted->tensors.weight.is_same(first->weight));
    EXPECT_TRUE(converted->named_buffers()["running_var"].is_same(first->running_var));
    EXPECT_FALSE(converted->tensors.weight.requires_grad());
    EXPECT_TRUE(converted->tensors.bias.requires_grad());
    EXPECT_EQ(converted->options.eps(), 3);
    EXPECT_FALSE(converted->options.momentum().has_value());
    const auto frozen = inner->ptr<SyncBatchNormImpl>(0);
    EXPECT_FALSE(frozen->is_training());
    EXPECT_FALSE(frozen->tensors.weight.defined());
    EXPECT_FALSE(inner->ptr<SyncBatchNormImpl>(1)->tensors.running_mean.defined());
    // Forward goes through what took their place.
    inner->ptr<SyncBatchNormImpl>(1)->eval();
    torch::nn::Sequential alone(first);
    convert_sync_batch_norm(*alone, communicator);
    alone->forward(signs().to(at::kFloat));
    EXPECT_EQ(first->num_batches_tracked.item<std::int64_t>(), 1);
  });
}

TEST(SyncBatchNormModuleTest, ConversionRefusesAMemberThatItCannotReplaceBeforeAnyEffect) {
  run_ranks(1, [](LocalCommunicator& communicator) {
    using Net = NormalizedImpl<torch::nn::BatchNorm1d>;
    torch::nn::Sequential net(torch::nn::BatchNorm1d(2),
                              std::make_shared<Net>(torch::nn::BatchNorm1d(2)));
    try {
      convert_sync_batch_norm(*net, communicator);
      ADD_FAILURE() << "a typed member was accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("'1.norm'"));
    }
    EXPECT_NE(net->children()[0]->as<torch::nn::BatchNorm1d>(), nullptr);
    EXPECT_TRUE(sync_batch_norm_from(*torch::nn::Linear(1, 1), communicator).is_empty());
  });
}

// A copy normalises as the original does, with tensors of its own.
TEST(SyncBatchNormModuleTest, CanBeCloned) {
  run_ranks(1, [](LocalCommunicator& communicator) {
    SyncBatchNorm norm(dyadic(), communicator);
    norm->forward(signs().to(at::kFloat));
    const auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(norm->clone());
    ASSERT_NE(copy, nullptr);
    EXPECT_TRUE(at::equal(copy->tensors.running_var, norm->tensors.running_var));
    EXPECT_FALSE(copy->tensors.running_var.is_same(norm->tensors.running_var));
    EXPECT_TRUE(copy->tensors.weight.requires_grad());
  });
}

}  // namespace
}  // namespace lockstep::test
