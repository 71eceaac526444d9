// SPDX-License-Identifier: Apache-2.0
// static_graph: what is counted, when it is reduced, and what a change of the graph does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "core/error.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;

DdpOptions static_graph(bool as_view = false) {
  DdpOptions options = one_parameter_per_bucket();
  options.static_graph = true;
  options.gradient_as_bucket_view = as_view;
  return options;
}

double mine(const LocalCommunicator& communicator) {
  return static_cast<double>(2 * communicator.rank() + 1);  // 1, 3: mean 2
}

TEST(StaticGraphTest, AveragesInEveryIterationAndRebuildsBeforeTheThird) {
  for (const bool as_view : {false, true}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(3);
      BankDdp ddp(bank.ptr(), communicator, static_graph(as_view));
      std::vector<std::int64_t> buckets;
      std::vector<double> averages;
      for (int step = 0; step < 4; ++step) {
        clear_gradients(*bank);
        const at::Tensor loss = ddp(all_terms(3, mine(communicator)));
        buckets.push_back(static_cast<std::int64_t>(ddp.engine().bucket_layout()->buckets.size()));
        loss.backward();
        averages.push_back(gradients(*bank)[1]);
      }
      return std::make_pair(buckets, averages);
    });
    for (const auto& [buckets, averages] : results) {
      EXPECT_THAT(buckets, ElementsAre(1, 1, 3, 3));
      EXPECT_THAT(averages, ElementsAre(2, 2, 2, 2));
    }
  }
}

TEST(StaticGraphTest, TheFirstIterationReducesTheMapBeforeTheBucketsAndNoLaterOneDoes) {
  const auto results = run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator, static_graph());
    communicator.clear_log();
    train_once(ddp, all_terms(2));
    train_once(ddp, all_terms(2));
    std::vector<std::string> log;
    for (const CollectiveRecord& record : communicator.log()) {
      log.push_back(to_string(record));
    }
    return log;
  });
  EXPECT_THAT(results[0], ElementsAre("all_reduce used_map -1 step 0: 2 Int",
                                      "all_reduce bucket 0 step 0: 2 Float",
                                      "all_reduce bucket 0 step 1: 2 Float"));
}

TEST(StaticGraphTest, UnusedParametersAreFoundInTheFirstIterationAndLeftAlone) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(3);
    BankDdp ddp(bank.ptr(), communicator, static_graph());
    std::vector<double> seen;
    for (int step = 0; step < 4; ++step) {
      clear_gradients(*bank);
      // 0: both ranks; 1: rank 1 only; 2: nobody.
      train_once(ddp, communicator.rank() == 0 ? std::vector<Term>{{0, 2.0}}
                                               : std::vector<Term>{{0, 4.0}, {1, 8.0}});
      const auto now = gradients(*bank);
      seen.insert(seen.end(), now.begin(), now.end());
    }
    return seen;
  });
  for (const auto& seen : results) {
    EXPECT_THAT(seen, ElementsAre(3, 4, kNone, 3, 4, kNone, 3, 4, kNone, 3, 4, kNone));
  }
}

TEST(StaticGraphTest, AParameterUsedLaterOnlyIsAChangeOfTheGraph) {
  const auto outcomes = try_run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator, static_graph());
    train_once(ddp, {{0}});
    train_once(ddp, {{0}});
    train_once(ddp, {{0}, {1}});
  });
  const auto error = outcomes[0].error_as<DdpError>();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), "static_graph_changed");
  EXPECT_THAT(error->parameters(), ElementsAre("p1"));
}

TEST(StaticGraphTest, AParameterNoLongerUsedIsNamedByTheNextForward) {
  const auto outcomes = try_run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator, static_graph());
    train_once(ddp, all_terms(2));
    train_once(ddp, {{1}});
    ddp(all_terms(2));
  });
  const auto error = outcomes[0].error_as<DdpError>();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), "static_graph_changed");
  EXPECT_THAT(error->parameters(), ElementsAre("p0"));
}

TEST(StaticGraphTest, SeveralForwardsBeforeTheFirstBackwardAreAllowed) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator, static_graph());
    ddp(all_terms(2));
    std::vector<double> seen;
    for (int step = 0; step < 4; ++step) {
      clear_gradients(*bank);
      const at::Tensor first = ddp(all_terms(2, mine(communicator)));
      const at::Tensor second = ddp(all_terms(2, mine(communicator)));
      (first + second).backward();
      seen.push_back(gradients(*bank)[0]);
    }
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre(4, 4, 4, 4));
}

TEST(StaticGraphTest, BackwardsUnderNoSyncNeitherCountNorReduce) {
  for (const bool no_sync_first : {true, false}) {
    const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(2);
      BankDdp ddp(bank.ptr(), communicator, static_graph());
      std::vector<double> seen;
      for (int step = 0; step < 4; ++step) {
        clear_gradients(*bank);
        if (no_sync_first || step > 0) {
          ddp.no_sync([&] { train_once(ddp, all_terms(2, mine(communicator))); });
          ddp.no_sync([&] { train_once(ddp, all_terms(2, mine(communicator))); });
        }
        train_once(ddp, all_terms(2, mine(communicator)));
        seen.push_back(gradients(*bank)[0]);
      }
      return seen;
    });
    for (const auto& seen : results) {
      EXPECT_THAT(seen, ElementsAre(no_sync_first ? 6 : 2, 6, 6, 6));
    }
  }
}

struct TwoHeadsImpl : torch::nn::Module {
  TwoHeadsImpl()
      : a(register_parameter("a", torch::ones({1}))),
        b(register_parameter("b", torch::ones({1}))) {}
  std::vector<at::Tensor> forward(double k) { return {a * k, b * k}; }
  at::Tensor a, b;
};

TEST(StaticGraphTest, AnOutputThatNeverEntersTheLossChangesNothing) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<TwoHeadsImpl>();
    DistributedDataParallel<TwoHeadsImpl> ddp(module, communicator, static_graph());
    std::vector<double> seen;
    for (int step = 0; step < 6; ++step) {
      clear_gradients(*module);
      ddp(mine(communicator))[0].sum().backward();
      seen.push_back(module->a.grad().item<double>());
      seen.push_back(module->b.grad().defined() ? 1 : 0);
    }
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre(2, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0));
}

TEST(StaticGraphTest, AnOutputThatEntersTheLossLaterIsAChangeOfTheGraph) {
  const auto outcomes = try_run_ranks(1, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<TwoHeadsImpl>();
    DistributedDataParallel<TwoHeadsImpl> ddp(module, communicator, static_graph());
    for (int step = 0; step < 3; ++step) {
      const auto outputs = ddp(1.0);
      (step < 2 ? outputs[0] : outputs[0] + outputs[1]).sum().backward();
    }
  });
  const auto error = outcomes[0].error_as<DdpError>();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), "static_graph_changed");
  EXPECT_THAT(error->parameters(), ElementsAre("b"));
}

TEST(StaticGraphTest, RanksMayHaveDifferentGraphs) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(3);
    BankDdp ddp(bank.ptr(), communicator, static_graph());
    std::vector<double> seen;
    for (int step = 0; step < 4; ++step) {
      clear_gradients(*bank);
      train_once(ddp, communicator.rank() == 0 ? std::vector<Term>{{0, 2.0}, {1, 2.0}}
                                               : std::vector<Term>{{2, 4.0}, {1, 4.0}});
      const auto now = gradients(*bank);
      seen.insert(seen.end(), now.begin(), now.end());
    }
    return seen;
  });
  for (const auto& seen : results) {
    EXPECT_THAT(seen, ElementsAre(1, 3, 2, 1, 3, 2, 1, 3, 2, 1, 3, 2));
  }
}

}  // namespace
}  // namespace lockstep::test
