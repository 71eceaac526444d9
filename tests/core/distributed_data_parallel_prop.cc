// SPDX-License-Identifier: Apache-2.0
// What holds for every model, bucket plan, used set and accumulation window.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <torch/types.h>

#include <algorithm>

#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

const std::vector<std::vector<std::int64_t>> kShapes = {{}, {1}, {3}, {2, 2}, {5, 2}};

// What every rank does: in each step some forwards under no_sync, then a synchronised one.
struct Plan {
  std::int64_t world_size = 1;
  std::vector<std::vector<std::int64_t>> shapes;
  DdpOptions options;
  bool clear_between_steps = true;
  // [step][micro-batch][rank] -> terms in order of use.
  std::vector<std::vector<std::vector<std::vector<Term>>>> terms;
};

template <typename T>
void shuffle(std::vector<T>& items, std::uint64_t state) {
  for (std::size_t left = items.size(); left > 1; --left) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    std::swap(items[left - 1], items[(state >> 33) % left]);
  }
}

// Coefficients are small integers and world sizes powers of two, so that every sum and division is
// exact. Unless `any_subset`, every parameter is used once in every forward, in any order.
Plan any_plan(bool any_subset) {
  Plan plan;
  plan.world_size = *rc::gen::element<std::int64_t>(1, 2, 4);
  const auto num_parameters = *rc::gen::inRange<std::size_t>(1, 7);
  for (std::size_t i = 0; i < num_parameters; ++i) {
    plan.shapes.push_back(*rc::gen::elementOf(kShapes));
  }
  plan.options.first_bucket_cap_bytes = *rc::gen::inRange<std::int64_t>(1, 100);
  plan.options.bucket_cap_bytes = *rc::gen::inRange<std::int64_t>(1, 100);
  plan.options.gradient_as_bucket_view = *rc::gen::arbitrary<bool>();
  plan.options.find_unused_parameters = any_subset;
  plan.clear_between_steps = any_subset || *rc::gen::arbitrary<bool>();
  const auto num_steps = *rc::gen::inRange<std::size_t>(1, 5);
  for (std::size_t step = 0; step < num_steps; ++step) {
    std::vector<std::vector<std::vector<Term>>> micro_batches(*rc::gen::inRange<std::size_t>(1, 4));
    for (auto& ranks : micro_batches) {
      ranks.resize(static_cast<std::size_t>(plan.world_size));
      for (auto& terms : ranks) {
        for (std::size_t i = 0; i < num_parameters; ++i) {
          if (!any_subset || *rc::gen::arbitrary<bool>()) {
            terms.push_back(
                {static_cast<std::int64_t>(i), static_cast<double>(*rc::gen::inRange(-8, 9))});
          }
        }
        shuffle(terms, *rc::gen::arbitrary<std::uint64_t>());
      }
    }
    plan.terms.push_back(std::move(micro_batches));
  }
  return plan;
}

struct RankRun {
  std::vector<std::vector<double>> gradients;  // [step][parameter]
  std::vector<CollectiveRecord> log;
  std::vector<std::int64_t> rebuilds;
  std::int64_t finalized = 0;
  bool launched_in_order = true;
};

RankRun run_plan(const Plan& plan, LocalCommunicator& communicator) {
  ParameterBank bank(plan.shapes);
  EventLog events;
  DdpOptions options = plan.options;
  options.observer = &events;
  BankDdp ddp(bank.ptr(), communicator, options);
  RankRun run;
  for (const auto& micro_batches : plan.terms) {
    if (plan.clear_between_steps) {
      clear_gradients(*bank);
    }
    const std::size_t launched_before = events.indices_of(EventKind::kBucketLaunched).size();
    for (std::size_t m = 0; m < micro_batches.size(); ++m) {
      const auto& terms = micro_batches[m][static_cast<std::size_t>(communicator.rank())];
      const auto train = [&] {
        const at::Tensor loss = ddp(terms);
        if (loss.requires_grad()) {
          loss.backward();
        }
      };
      if (m + 1 < micro_batches.size()) {
        ddp.no_sync(train);
      } else {
        train();
      }
    }
    run.gradients.push_back(gradients(*bank));
    const auto launched = events.indices_of(EventKind::kBucketLaunched);
    for (std::size_t i = launched_before; i < launched.size(); ++i) {
      run.launched_in_order &= launched[i] == static_cast<std::int64_t>(i - launched_before);
    }
  }
  run.log = communicator.log();
  run.rebuilds = events.indices_of(EventKind::kRebuilt);
  run.finalized = static_cast<std::int64_t>(events.indices_of(EventKind::kFinalized).size());
  return run;
}

// The definition: a parameter that any rank used in the window has the mean over ranks of what each
// rank accumulated; one that none used keeps what it had.
std::vector<std::vector<double>> expected(const Plan& plan) {
  std::vector<double> value(plan.shapes.size(), kNone);
  std::vector<std::vector<double>> steps;
  for (const auto& micro_batches : plan.terms) {
    if (plan.clear_between_steps) {
      value.assign(plan.shapes.size(), kNone);
    }
    std::vector<double> total(plan.shapes.size(), 0.0);
    std::vector<bool> used(plan.shapes.size(), false);
    for (const auto& ranks : micro_batches) {
      for (const auto& terms : ranks) {
        for (const Term& term : terms) {
          total[static_cast<std::size_t>(term.parameter)] += term.coefficient;
          used[static_cast<std::size_t>(term.parameter)] = true;
        }
      }
    }
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (used[i]) {
        const double before = value[i] == kNone ? 0.0 : value[i];
        value[i] = before + total[i] / static_cast<double>(plan.world_size);
      }
    }
    steps.push_back(value);
  }
  return steps;
}

void check(const Plan& plan) {
  const auto runs = run_ranks(plan.world_size, [&](LocalCommunicator& communicator) {
    return run_plan(plan, communicator);
  });
  const auto wanted = expected(plan);
  const auto num_steps = static_cast<std::int64_t>(plan.terms.size());
  for (const RankRun& run : runs) {
    RC_ASSERT(run.gradients == wanted);
    RC_ASSERT(run.launched_in_order);
    RC_ASSERT(run.log == runs[0].log);  // the same sequence of collectives on all ranks
    RC_ASSERT(run.finalized == num_steps);
    const bool rebuilds = !plan.options.find_unused_parameters && num_steps > 1;
    RC_ASSERT(run.rebuilds.size() == (rebuilds ? 1U : 0U));
    const auto maps = std::count_if(run.log.begin(), run.log.end(), [](const auto& record) {
      return record.tag.site == CallSite::kUsedMap;
    });
    RC_ASSERT(maps == (plan.options.find_unused_parameters ? num_steps : 0));
  }
}

// Loses the sum of one bucket: every rank keeps its own part.
class ForgetfulCommunicator : public LocalCommunicator {
 public:
  using LocalCommunicator::LocalCommunicator;
  std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) override {
    return LocalCommunicator::all_reduce(tag.bucket == 0 ? tensor.clone() : tensor, op, tag);
  }
};

TEST(DistributedDataParallelTest, TheCheckOfGradientsSeesALostSum) {
  Plan plan;
  plan.shapes = {{1}};
  plan.terms = {{{{{0, 1.0}}, {{0, 3.0}}}}};  // one step, one micro-batch, two ranks
  plan.world_size = 2;
  const auto wanted = expected(plan);
  EXPECT_EQ(wanted, (std::vector<std::vector<double>>{{2.0}}));
  const auto group = std::make_shared<LocalGroup>(2);
  const auto good = run_ranks(
      2, [&](LocalCommunicator& communicator) { return run_plan(plan, communicator).gradients; });
  EXPECT_EQ(good[0], wanted);
  const auto bad = run_ranks(2, [&](LocalCommunicator& communicator) {
    ForgetfulCommunicator forgetful(group, communicator.rank());
    return run_plan(plan, forgetful).gradients;
  });
  EXPECT_NE(bad[0], wanted);
}

RC_GTEST_PROP(DistributedDataParallelProps, GradientsAreTheMeanOfWhatRanksAccumulated, ()) {
  check(any_plan(false));
}

RC_GTEST_PROP(DistributedDataParallelProps, WithFindUnusedAnyUsedSetsGiveTheMeanOverRanks, ()) {
  check(any_plan(true));
}

RC_GTEST_PROP(DistributedDataParallelProps, AStaticGraphGivesWhatADynamicOneGives, ()) {
  Plan plan = any_plan(false);
  plan.options.static_graph = true;
  const auto runs = run_ranks(plan.world_size, [&](LocalCommunicator& communicator) {
    return run_plan(plan, communicator);
  });
  const auto wanted = expected(plan);
  for (const RankRun& run : runs) {
    RC_ASSERT(run.gradients == wanted);
    RC_ASSERT(run.log == runs[0].log);
    RC_ASSERT(run.rebuilds.size() == (plan.terms.size() > 2 ? 1U : 0U));
  }
}

}  // namespace
}  // namespace lockstep::test
