// SPDX-License-Identifier: Apache-2.0
// Complex and low-precision parameters, odd layouts, empty ones, gradients that have a graph.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include "core/comm_hooks.h"
#include "core/error.h"
#include "tests/core/dictated.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

at::Tensor complex_sevenths(std::int64_t rank) {
  return at::view_as_complex(sevenths(rank, {2, 3, 2}));
}

// Step 0: gradients are undefined before, so each part is multiplied by the reciprocal. Step 1:
// zeroed in place, so in view mode each part is divided where it lies (G3).
TEST(DtypesAndLayoutsTest, ComplexGradientsAreReducedAsPairsOfRealNumbers) {
  for (const std::int64_t world_size : {1, 2, 3, 4}) {
    for (const bool as_view : {false, true}) {
      const auto results = run_ranks(world_size, [&](LocalCommunicator& communicator) {
        const auto rank = communicator.rank();
        const auto module = std::make_shared<DictatedImpl>(
            std::vector<at::Tensor>{complex_sevenths(rank), at::zeros({2}, at::kComplexDouble),
                                    at::zeros({3, 2}, at::kComplexFloat).t()});
        DdpOptions options;
        options.gradient_as_bucket_view = as_view;
        DictatedDdp ddp(module, communicator, options);
        std::vector<at::Tensor> seen = {module->values[0].detach().clone()};
        communicator.clear_log();
        for (int step = 0; step < 2; ++step) {
          module->zero_grad(/*set_to_none=*/false);
          ddp(std::vector<at::Tensor>{complex_sevenths(rank),
                                      at::Tensor(at::ones({2})).to(at::kComplexDouble),
                                      complex_sevenths(rank).conj()})
              .backward();
          seen.push_back(module->values[0].grad().clone());
          seen.push_back(module->values[2].grad().clone());
        }
        std::vector<std::string> log;
        for (const CollectiveRecord& record : communicator.log()) {
          log.push_back(to_string(record));
        }
        return std::make_pair(seen, log);
      });
      const auto ranks = static_cast<double>(world_size);
      const auto mean = [&](bool divides) {
        return at::view_as_complex(sum_over(world_size, [&](std::int64_t rank) {
          const at::Tensor parts = sevenths(rank, {2, 3, 2});
          return divides ? parts / ranks : parts * (1.0 / ranks);
        }));
      };
      for (const auto& [seen, log] : results) {
        EXPECT_TRUE(same(seen[0], complex_sevenths(0)));  // broadcast at construction
        EXPECT_TRUE(same(seen[1], mean(false))) << world_size << " ranks, views " << as_view;
        EXPECT_TRUE(same(seen[2], mean(false).conj().resolve_conj()));
        EXPECT_TRUE(same(seen[3], mean(as_view))) << world_size << " ranks, views " << as_view;
        EXPECT_EQ(log[0], "all_reduce bucket 0 step 0: 4 Double");
        EXPECT_EQ(log[1], "all_reduce bucket 1 step 0: 24 Float");
      }
    }
  }
}

TEST(DtypesAndLayoutsTest, AHookSeesComplexGradientsAsARealBufferAndComplexViews) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<DictatedImpl>(
        std::vector<at::Tensor>{at::zeros({2, 3}, at::kComplexFloat)});
    DictatedDdp ddp(module, communicator);
    std::vector<bool> good;
    ddp.register_comm_hook(
        [&](const GradBucket& bucket) {
          good.push_back(bucket.buffer.scalar_type() == at::kFloat);
          good.push_back(bucket.lengths == std::vector<std::int64_t>{12});
          good.push_back(same(bucket.gradients()[0], complex_sevenths(communicator.rank())));
          return all_reduce_hook(communicator)(bucket);
        },
        "spy");
    ddp(std::vector<at::Tensor>{complex_sevenths(communicator.rank())}).backward();
    good.push_back(
        same(module->values[0].grad(),
             at::view_as_complex(sevenths(0, {2, 3, 2}) / 2.0 + sevenths(1, {2, 3, 2}) / 2.0)));
    return good;
  });
  EXPECT_THAT(results, Each(Each(true)));
}

// Every dtype is scaled and summed in its own precision; five buckets in the order of C11.
TEST(DtypesAndLayoutsTest, MixedDtypesAreEachReducedInTheirOwn) {
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kHalf, at::kBFloat16, at::kDouble};
  for (const std::int64_t world_size : {2, 3}) {
    for (const bool as_view : {false, true}) {
      const auto results = run_ranks(world_size, [&](LocalCommunicator& communicator) {
        std::vector<at::Tensor> values;
        std::vector<at::Tensor> wanted;
        for (const at::ScalarType dtype : dtypes) {
          values.push_back(at::zeros({3}, dtype));
          wanted.push_back(sevenths(communicator.rank(), {3}, dtype));
        }
        const auto module = std::make_shared<DictatedImpl>(values);
        DdpOptions options;
        options.gradient_as_bucket_view = as_view;
        DictatedDdp ddp(module, communicator, options);
        for (int step = 0; step < 2; ++step) {
          clear_gradients(*module);
          ddp(wanted).backward();
        }
        return gradient_tensors(*module);
      });
      for (const auto& gradients : results) {
        for (std::size_t i = 0; i < dtypes.size(); ++i) {
          const at::Tensor expected = sum_over(world_size, [&](std::int64_t rank) {
            return sevenths(rank, {3}, dtypes[i]) * (1.0 / static_cast<double>(world_size));
          });
          EXPECT_TRUE(same(gradients[i], expected)) << dtypes[i];
        }
      }
    }
  }
}

// Dense parameters keep their strides, one with gaps gets a contiguous view; values are the same.
TEST(DtypesAndLayoutsTest, AnyLayoutOfAParameterGivesTheSameValues) {
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      const at::Tensor plain = at::zeros({2, 3, 2, 2});
      const auto module = std::make_shared<DictatedImpl>(std::vector<at::Tensor>{
          plain.clone(), plain.to(at::MemoryFormat::ChannelsLast),
          plain.transpose(0, 3).clone(at::MemoryFormat::Contiguous).transpose(0, 3),
          at::zeros({2, 3, 2, 5}).narrow(3, 1, 2)});
      DdpOptions options;
      options.gradient_as_bucket_view = as_view;
      DictatedDdp ddp(module, communicator, options);
      const at::Tensor wanted = sevenths(communicator.rank(), {2, 3, 2, 2});
      std::vector<bool> good;
      for (int step = 0; step < 3; ++step) {
        module->zero_grad();
        ddp(std::vector<at::Tensor>{wanted, wanted, wanted, wanted}).backward();
        for (std::size_t i = 0; i < 4; ++i) {
          good.push_back(same(module->values[i].grad(),
                              sevenths(0, {2, 3, 2, 2}) / 2 + sevenths(1, {2, 3, 2, 2}) / 2));
          if (as_view && i < 3) {
            good.push_back(module->values[i].grad().strides() == module->values[i].strides());
          }
        }
      }
      return good;
    });
    EXPECT_THAT(results, Each(Each(true)));
  }
}

// p1 is ready last and its 0 bytes close no bucket, so after the rebuild it is a bucket by itself.
TEST(DtypesAndLayoutsTest, AParameterWithoutElementsMayHaveABucketOfItsOwn) {
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank(std::vector<std::vector<std::int64_t>>{{2}, {0, 3}});
      DdpOptions options = one_parameter_per_bucket();
      options.gradient_as_bucket_view = as_view;
      BankDdp ddp(bank.ptr(), communicator, options);
      for (int step = 0; step < 3; ++step) {
        clear_gradients(*bank);
        train_once(ddp, {{1, 1.0}, {0, static_cast<double>(communicator.rank())}});
      }
      EXPECT_EQ(ddp.engine().bucket_layout()->buckets.size(), 2U);
      EXPECT_EQ(bank->parameter(1).grad().sizes(), bank->parameter(1).sizes());
      return bank->parameter(0).grad()[0].item<double>();
    });
    EXPECT_THAT(results, ElementsAre(0.5, 0.5));
  }
}

// Loss c p^2 with c = rank + 1 and p = 1: gradient 2 c, mean 3; its own derivative 2 c is local.
TEST(DtypesAndLayoutsTest, WithCreateGraphOnlyValuesAreSynchronised) {
  struct SquareImpl : torch::nn::Module {
    SquareImpl() : p(register_parameter("p", torch::ones({2}))) {}
    at::Tensor forward(double c) { return (p * p * c).sum(); }
    at::Tensor p;
  };
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      const auto module = std::make_shared<SquareImpl>();
      DdpOptions options;
      options.gradient_as_bucket_view = as_view;
      DistributedDataParallel<SquareImpl> ddp(module, communicator, options);
      const auto c = static_cast<double>(communicator.rank() + 1);
      std::vector<double> seen;
      for (int step = 0; step < 3; ++step) {
        clear_gradients(*module);
        ddp(c).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
        const at::Tensor gradient = module->p.grad();
        seen.push_back(gradient[1].item<double>());
        seen.push_back(
            gradient.requires_grad()
                ? torch::autograd::grad({gradient.sum()}, {module->p})[0][0].item<double>()
                : kNone);
      }
      clear_gradients(*module);  // whose graph holds the parameter that holds the gradient
      return seen;
    });
    for (std::size_t rank = 0; rank < results.size(); ++rank) {
      const double second = as_view ? kNone : 2.0 * static_cast<double>(rank + 1);
      EXPECT_THAT(results[rank], ElementsAre(3, second, 3, second, 3, second));
    }
  }
}

}  // namespace
}  // namespace lockstep::test
