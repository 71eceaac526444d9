// SPDX-License-Identifier: Apache-2.0
// Parameters with sparse gradients: the sum over ranks, buckets, unused ones, errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/enum.h>
#include <torch/nn/modules/embedding.h>
#include <torch/types.h>

#include "core/comm_hooks.h"
#include "core/error.h"
#include "core/sparse_all_reduce.h"
#include "tests/core/dictated.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr std::int64_t kNumRows = 6;

at::Tensor rows_of(std::initializer_list<std::int64_t> rows) {
  return at::tensor(std::vector<std::int64_t>(rows), at::kLong);
}

// A table, a bag and a dense scale. forward(rows, factor) gives each looked-up element of the
// table's row i the gradient factor * (i + 1), once per occurrence; undefined rows: not used.
struct TablesImpl : torch::nn::Module {
  explicit TablesImpl(bool sparse) {
    table = register_module(
        "table", torch::nn::Embedding(torch::nn::EmbeddingOptions(kNumRows, 2).sparse(sparse)));
    bag = register_module(
        "bag", torch::nn::EmbeddingBag(
                   torch::nn::EmbeddingBagOptions(kNumRows, 3).mode(torch::kSum).sparse(sparse)));
    scale = register_parameter("scale", torch::ones({2}));
  }
  at::Tensor forward(const at::Tensor& rows, double factor) {
    at::Tensor total = (scale * factor).sum();
    if (rows.defined()) {
      const at::Tensor weights = (rows + 1).to(at::kFloat).unsqueeze(1) * factor;
      total = total + (table(rows) * weights).sum();
      total = total + (bag(rows.view({-1, 1})) * weights).sum();
    }
    return total;
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::EmbeddingBag bag{nullptr};
  at::Tensor scale;
};

using TablesDdp = DistributedDataParallel<TablesImpl>;

std::vector<at::Tensor> dense_gradients(torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& gradient : gradient_tensors(module)) {
    gradients.push_back(gradient.defined() && gradient.is_sparse() ? gradient.to_dense()
                                                                   : gradient);
  }
  return gradients;
}

// Rows that repeat, that other ranks have too, in different numbers; every fourth rank has none.
at::Tensor rows_for(std::int64_t rank, std::int64_t step) {
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < (rank + step + 1) % 4 * 2; ++i) {
    rows.push_back((i * (rank + 2) + step) % kNumRows);
  }
  return at::tensor(rows, at::kLong);
}

// Multiples of 12 stay whole when divided by up to 4 ranks, so both ways of dividing agree.
TEST(SparseGradientsTest, GiveWhatDenseGradientsGive) {
  for (const std::int64_t world_size : {1, 2, 3, 4}) {
    for (const bool as_view : {false, true}) {
      for (const bool static_graph : {false, true}) {
        const auto run = [&](bool sparse) {
          return run_ranks(world_size, [&](LocalCommunicator& communicator) {
            const auto module = std::make_shared<TablesImpl>(sparse);
            DdpOptions options = one_parameter_per_bucket();
            options.gradient_as_bucket_view = as_view;
            options.static_graph = static_graph;
            TablesDdp ddp(module, communicator, options);
            std::vector<at::Tensor> seen;
            for (std::int64_t step = 0; step < 4; ++step) {
              clear_gradients(*module);
              const at::Tensor rows = rows_for(communicator.rank(), step);
              ddp.no_sync([&] { ddp(rows, 24.0).backward(); });
              ddp(rows, 12.0).backward();
              EXPECT_EQ(module->table->weight.grad().is_sparse(), sparse);
              for (const at::Tensor& gradient : dense_gradients(*module)) {
                seen.push_back(gradient);
              }
            }
            return seen;
          });
        };
        const auto sparse = run(true);
        const auto dense = run(false);
        for (std::size_t rank = 0; rank < sparse.size(); ++rank) {
          for (std::size_t i = 0; i < sparse[rank].size(); ++i) {
            EXPECT_TRUE(same(sparse[rank][i], dense[0][i]))
                << "rank " << rank << " of " << world_size << ", gradient " << i;
          }
        }
      }
    }
  }
}

// Each rank's rows are divided, then added in rank order; three ranks, so neither is exact.
TEST(SparseGradientsTest, AreDividedThenAddedInRankOrder) {
  const auto values_of = [](std::int64_t rank) { return sevenths(rank, {2, 3}); };
  const auto results = run_ranks(3, [&](LocalCommunicator& communicator) {
    // Rank r holds rows r and r + 1.
    const std::int64_t rank = communicator.rank();
    const at::Tensor mine = at::sparse_coo_tensor(rows_of({rank + 1, rank}).unsqueeze(0),
                                                  values_of(rank), {kNumRows, 3});
    return sparse_all_reduce(communicator, divided_rows(mine, 3), {}).wait();
  });
  const auto at_row = [&](std::int64_t rank, std::int64_t row) { return values_of(rank)[row] / 3; };
  const at::Tensor expected = at::zeros({kNumRows, 3});
  expected[0] = at_row(0, 1);
  expected[1] = at_row(0, 0) + at_row(1, 1);
  expected[2] = at_row(1, 0) + at_row(2, 1);
  expected[3] = at_row(2, 0);
  for (const at::Tensor& sum : results) {
    EXPECT_TRUE(sum.is_coalesced());
    EXPECT_EQ(sum._nnz(), 4);
    EXPECT_TRUE(same(sum.to_dense(), expected));
  }
}

TEST(SparseGradientsTest, ValuesOfARowAreDividedBeforeTheyAreAddedUp) {
  // 7/3 + 9/3 is not 16/3 in float.
  const at::Tensor values = at::tensor({7.0F, 9.0F}).view({2, 1});
  const at::Tensor twice =
      at::sparse_coo_tensor(rows_of({1, 1}).unsqueeze(0), values, {kNumRows, 1});
  const at::Tensor expected = values[0] / 3 + values[1] / 3;
  ASSERT_FALSE(same(expected, (values[0] + values[1]) / 3));
  EXPECT_TRUE(same(divided_rows(twice, 3).to_dense()[1], expected));
  EXPECT_TRUE(same(values.flatten(), at::tensor({7.0F, 9.0F})));
}

// Looks rows up by itself, so that its type tells nothing of its gradient.
struct OwnTableImpl : torch::nn::Module {
  OwnTableImpl() { weight = register_parameter("weight", torch::ones({kNumRows, 2})); }
  at::Tensor forward(const at::Tensor& rows) {
    return torch::embedding(weight, rows, -1, false, /*sparse=*/true).sum();
  }
  at::Tensor weight;
};

TEST(SparseGradientsTest, OfAnyModuleAreReducedWhereTheyAreDeclared) {
  const auto gradients = run_ranks(2, [](LocalCommunicator& communicator) {
    DdpOptions options;
    options.sparse = {"weight"};
    DistributedDataParallel<OwnTableImpl> ddp(std::make_shared<OwnTableImpl>(), communicator,
                                              options);
    ddp(rows_of({communicator.rank()})).backward();
    EXPECT_TRUE(ddp.module().weight.grad().is_sparse());
    return ddp.module().weight.grad().to_dense();
  });
  at::Tensor expected = at::zeros({kNumRows, 2});
  expected.narrow(0, 0, 2).fill_(0.5);
  EXPECT_TRUE(same(gradients[0], expected));
  EXPECT_TRUE(same(gradients[1], expected));
  run_ranks(1, [](LocalCommunicator& communicator) {
    DdpOptions options;
    options.sparse = {"wait"};
    const auto module = std::make_shared<OwnTableImpl>();
    EXPECT_THROW(DistributedDataParallel<OwnTableImpl>(module, communicator, options), UsageError);
  });
}

TEST(SparseGradientsTest, HaveBucketsOfTheirOwnBeforeAndAfterTheRebuild) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<TablesImpl>(true);
    TablesDdp ddp(module, communicator);
    std::vector<std::vector<std::vector<std::int64_t>>> layouts;
    std::vector<std::string> log;
    for (int step = 0; step < 2; ++step) {
      communicator.clear_log();
      ddp(rows_of({1}), 2.0).backward();
      layouts.push_back(ddp.engine().bucket_layout()->buckets);
    }
    for (const CollectiveRecord& record : communicator.log()) {
      if (record.tag.site == CallSite::kBucket && record.tag.bucket == 1) {
        log.push_back(to_string(record));
      }
    }
    return std::make_pair(layouts, log);
  });
  const auto& [layouts, log] = results[0];
  // A1 puts a module's own parameters first here: scale, table.weight, bag.weight.
  EXPECT_THAT(layouts[0], ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0)));
  EXPECT_EQ(layouts[1].size(), 3U);
  EXPECT_THAT(log, Each(::testing::StartsWith("all_gather bucket 1 step 1")));
  EXPECT_EQ(log.size(), 3U);  // numbers of rows, indices, values
}

// table and bag are used by rank 1 only, then by nobody.
TEST(SparseGradientsTest, OfAnUnusedParameterAreEmptyAndOfOneThatNobodyUsesStayUntouched) {
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      const auto module = std::make_shared<TablesImpl>(true);
      DdpOptions options;
      options.find_unused_parameters = true;
      options.gradient_as_bucket_view = as_view;
      TablesDdp ddp(module, communicator, options);
      ddp(communicator.rank() == 1 ? rows_of({2}) : at::Tensor(), 4.0).backward();
      std::vector<at::Tensor> seen = dense_gradients(*module);
      clear_gradients(*module);
      ddp(at::Tensor(), 4.0).backward();
      seen.push_back(module->table->weight.grad());
      return seen;
    });
    const at::Tensor expected = at::zeros({kNumRows, 2});
    expected[2] = 4.0 * 3 / 2;
    for (const auto& seen : results) {
      EXPECT_TRUE(same(seen[1], expected));
      EXPECT_FALSE(seen[3].defined());
    }
  }
}

TEST(SparseGradientsTest, OfAParameterThatAStaticGraphDoesNotUseAreEmpty) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<TablesImpl>(true);
    DdpOptions options;
    options.static_graph = true;
    TablesDdp ddp(module, communicator, options);
    std::vector<double> seen;
    for (int step = 0; step < 4; ++step) {
      clear_gradients(*module);
      ddp(communicator.rank() == 1 ? rows_of({2}) : at::Tensor(), 4.0).backward();
      seen.push_back(module->table->weight.grad().to_dense()[2][0].item<double>());
    }
    return seen;
  });
  EXPECT_THAT(results, Each(ElementsAre(6, 6, 6, 6)));
}

TEST(SparseGradientsTest, GoThroughHooksAsBackwardLeftThem) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    std::vector<double> seen;
    for (const CommHook& hook : {all_reduce_hook(communicator), fp16_compress_hook(communicator),
                                 quantize_per_tensor_hook(communicator), noop_hook()}) {
      const auto module = std::make_shared<TablesImpl>(true);
      TablesDdp ddp(module, communicator);
      ddp.register_comm_hook(
          [&](const GradBucket& bucket) {
            if (bucket.buffer.is_sparse()) {
              EXPECT_EQ(bucket.buffer._nnz(), 2);  // row 3 twice
              EXPECT_EQ(bucket.gradients().size(), 1U);
            }
            return hook(bucket);
          },
          "spy");
      ddp(rows_of({3, 3}), static_cast<double>(communicator.rank() + 1)).backward();
      seen.push_back(module->table->weight.grad().to_dense()[3][1].item<double>());
    }
    return seen;
  });
  // Row 3 weighs 4 and occurs twice: 8 and 16, mean 12.
  EXPECT_THAT(results[0], ElementsAre(12, 12, 12, 8));
  EXPECT_THAT(results[1], ElementsAre(12, 12, 12, 16));
}

// Three ranks look row 2 up in each of two backwards, with gradients that no division by three
// leaves exact. The other rows keep the second backward from adding up.
TEST(SparseGradientsTest, HooksDivideValuesBeforeTheyAddThemInTheTypeTheySumIn) {
  const auto factor = [](std::int64_t rank, int use) {
    return 1.0 / static_cast<double>(use == 0 ? 7 + rank : 12 + 2 * rank);
  };
  using MakeHook = CommHook (*)(Communicator&);
  for (const auto& [make_hook, dtype] :
       std::vector<std::pair<MakeHook, at::ScalarType>>{{all_reduce_hook, at::kFloat},
                                                        {fp16_compress_hook, at::kHalf},
                                                        {bf16_compress_hook, at::kBFloat16}}) {
    const auto results = run_ranks(3, [&, make = make_hook](LocalCommunicator& communicator) {
      const auto module = std::make_shared<TablesImpl>(true);
      TablesDdp ddp(module, communicator);
      ddp.register_comm_hook(make(communicator), "hook");
      ddp.no_sync([&] { ddp(rows_of({2, 0}), factor(communicator.rank(), 0)).backward(); });
      ddp(rows_of({3, 2}), factor(communicator.rank(), 1)).backward();
      return module->table->weight.grad();
    });
    at::Tensor sum = at::zeros({2}, dtype);
    at::Tensor divided_late = at::zeros({2}, dtype);
    for (std::int64_t rank = 0; rank < 3; ++rank) {
      const at::Tensor first = (at::full({2}, 3.0F) * factor(rank, 0)).to(dtype);
      const at::Tensor second = (at::full({2}, 3.0F) * factor(rank, 1)).to(dtype);
      sum += first / 3 + second / 3;
      divided_late += (first + second) / 3;
    }
    ASSERT_FALSE(same(sum, divided_late)) << c10::toString(dtype);
    for (const at::Tensor& gradient : results) {
      EXPECT_EQ(gradient.scalar_type(), at::kFloat);
      EXPECT_TRUE(same(gradient.to_dense()[2], sum.to(at::kFloat))) << c10::toString(dtype);
    }
  }
}

// The weight is also used by a matrix product, or a plain parameter is looked up.
struct MisusedImpl : torch::nn::Module {
  MisusedImpl() {
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(3, 2).sparse(true)));
    plain = register_parameter("plain", torch::ones({3, 2}));
  }
  at::Tensor forward(bool table_is_dense) {
    const at::Tensor rows = rows_of({1});
    return (table_is_dense ? table->weight.sum() + table(rows).sum() + plain.sum()
                           : table(rows).sum() + at::embedding(plain, rows, -1, false, true).sum());
  }
  torch::nn::Embedding table{nullptr};
  at::Tensor plain;
};

TEST(SparseGradientsTest, OfTheWrongKindAreNamed) {
  for (const bool table_is_dense : {false, true}) {
    const auto outcomes = try_run_ranks(1, [&](LocalCommunicator& communicator) {
      const auto module = std::make_shared<MisusedImpl>();
      DistributedDataParallel<MisusedImpl> ddp(module, communicator);
      ddp(table_is_dense).backward();
    });
    const auto error = outcomes[0].error_as<DdpError>();
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->kind(), "sparse_gradient");
    EXPECT_THAT(error->parameters(), ElementsAre(table_is_dense ? "table.weight" : "plain"));
  }
}

}  // namespace
}  // namespace lockstep::test
