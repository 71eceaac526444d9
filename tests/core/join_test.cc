// SPDX-License-Identifier: Apache-2.0
// Join with joinables that count.
#include "core/join.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "core/error.h"
#include "tests/core/iteration_mappings.h"
#include "tests/support/run_ranks.h"

namespace lockstep::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Integers = std::vector<std::int64_t>;

// Each iteration sums up `contribution` over ranks.
class Counter : public Joinable {
 public:
  Counter(Communicator& communicator, std::int64_t contribution)
      : communicator_(communicator), contribution_(contribution) {}

  void iterate() {
    if (context_ != nullptr) {
      context_->notify(*this);
      active.push_back(context_->num_active());
    }
    sums.push_back(sum(contribution_));
  }

  Communicator& join_communicator() override { return communicator_; }
  void enter_join(JoinContext& context) override {
    LOCKSTEP_USAGE(context_ == nullptr, "joined already");
    context_ = &context;
  }
  void leave_join() noexcept override {
    context_ = nullptr;
    ++left;
  }
  void shadow_iteration() override { shadowed.push_back(sum(0)); }
  void finish_join(bool is_last_joiner) override {
    is_last = is_last_joiner;
    ++finished;
  }

  Integers sums, shadowed, active;
  bool is_last = false;
  int finished = 0;
  int left = 0;

 private:
  std::int64_t sum(std::int64_t value) {
    const at::Tensor tensor = at::full({1}, value, at::kLong);
    communicator_.all_reduce(tensor, ReduceOp::kSum, {})->wait();
    return tensor.item<std::int64_t>();
  }

  Communicator& communicator_;
  std::int64_t contribution_;
  JoinContext* context_ = nullptr;
};

struct Outcome {
  Counter counter;
  std::vector<std::string> log;
};

Outcome count(LocalCommunicator& communicator, std::int64_t iterations,
              const JoinOptions& options = {}) {
  Outcome outcome{{communicator, communicator.rank() + 1}, {}};
  join(
      {&outcome.counter},
      [&] {
        for (std::int64_t i = 0; i < iterations; ++i) {
          outcome.counter.iterate();
        }
      },
      options);
  for (const CollectiveRecord& record : communicator.log()) {
    outcome.log.push_back(to_string(record));
  }
  return outcome;
}

// Rank q contributes q + 1 while its iterations last.
TEST(JoinTest, EveryMappingOfIterationsShadowsTheRestAndCountsWhoIsActive) {
  for (const Integers& mapping : iteration_mappings(3)) {
    const auto world_size = static_cast<std::int64_t>(mapping.size());
    const std::int64_t longest = *std::max_element(mapping.begin(), mapping.end());
    Integers sums, active;
    for (std::int64_t i = 0; i < longest; ++i) {
      sums.push_back(0);
      active.push_back(0);
      for (std::size_t q = 0; q < mapping.size(); ++q) {
        sums.back() += mapping[q] > i ? static_cast<std::int64_t>(q + 1) : 0;
        active.back() += mapping[q] > i ? 1 : 0;
      }
    }
    const auto outcomes = run_ranks(world_size, [&](LocalCommunicator& communicator) {
      return count(communicator, mapping[static_cast<std::size_t>(communicator.rank())]);
    });
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      const Counter& counter = outcomes[rank].counter;
      const std::int64_t own = mapping[rank];
      EXPECT_EQ(counter.sums, Integers(sums.begin(), sums.begin() + own));
      EXPECT_EQ(counter.active, Integers(active.begin(), active.begin() + own));
      EXPECT_EQ(counter.shadowed, Integers(sums.begin() + own, sums.end()));
      EXPECT_EQ(counter.is_last, own == longest);
      EXPECT_EQ(counter.finished, 1);
      EXPECT_EQ(counter.left, 1);
      EXPECT_EQ(outcomes[rank].log, outcomes[0].log);
    }
  }
}

TEST(JoinTest, EarlyTerminationEndsAllRanksInTheSameIterationAndSaysWhoWasFirst) {
  JoinOptions options;
  options.throw_on_early_termination = true;
  for (const Integers& mapping : iteration_mappings(2)) {
    const auto world_size = static_cast<std::int64_t>(mapping.size());
    const auto [shortest, longest] = std::minmax_element(mapping.begin(), mapping.end());
    Integers done(mapping.size(), 0);
    const auto outcomes = try_run_ranks(world_size, [&](LocalCommunicator& communicator) {
      const auto rank = static_cast<std::size_t>(communicator.rank());
      Counter counter(communicator, 1);
      join(
          {&counter},
          [&] {
            for (std::int64_t i = 0; i < mapping[rank]; ++i) {
              counter.iterate();
              EXPECT_EQ(counter.active.back(), world_size);
              done[rank] = i + 1;
            }
          },
          options);
      return counter.finished;
    });
    EXPECT_THAT(done, Each(*shortest));
    for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
      const auto error = outcomes[rank].error_as<DdpError>();
      ASSERT_EQ(error.has_value(), *shortest != *longest);
      if (!error.has_value()) {
        EXPECT_EQ(*outcomes[rank].value, 1);
        continue;
      }
      EXPECT_EQ(error->kind(), "join_early_termination");
      EXPECT_THAT(error->what(),
                  HasSubstr(mapping[rank] == *shortest
                                ? fmt::format("rank {} has exhausted all its inputs", rank)
                                : "at least one rank has exhausted its inputs"));
    }
  }
}

TEST(JoinTest, DisabledItIsTheBodyAlone) {
  JoinOptions options;
  options.enable = false;
  const auto outcomes = run_ranks(
      2, [&](LocalCommunicator& communicator) { return count(communicator, 2, options); });
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.log.size(), 2);
    EXPECT_THAT(outcome.counter.sums, ElementsAre(3, 3));
    EXPECT_EQ(outcome.counter.finished, 0);
    EXPECT_EQ(outcome.counter.left, 0);
  }
}

TEST(JoinTest, WhatTheBodyThrowsComesOutWithoutAnyHook) {
  const auto outcomes = run_ranks(2, [](LocalCommunicator& communicator) {
    Counter counter(communicator, 1);
    std::string caught;
    try {
      join({&counter}, [&] {
        counter.iterate();
        throw std::runtime_error("planned");
      });
    } catch (const std::runtime_error& error) {
      caught = error.what();
    }
    return std::make_tuple(caught, communicator.log().size(), counter.finished, counter.left);
  });
  // One notification, one sum.
  EXPECT_THAT(outcomes, Each(std::make_tuple("planned", 2, 0, 1)));
}

TEST(JoinTest, OnlyTheFirstOfSeveralJoinablesNotifiesAndAllAreShadowedInOrder) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    Counter first(communicator, 1);
    Counter second(communicator, 10);
    join({&first, &second}, [&] {
      for (std::int64_t i = 0; i < 2 * communicator.rank(); ++i) {
        first.iterate();
        second.iterate();
      }
    });
    EXPECT_EQ(first.finished + second.finished, 2);
    EXPECT_EQ(first.is_last, communicator.rank() == 1);
    EXPECT_EQ(second.active.size(), second.sums.size());
    return std::make_tuple(communicator.count(CallSite::kJoinActive), first.shadowed,
                           second.shadowed, second.sums);
  });
  // Two iterations of rank 1, and the notification that finds nobody.
  EXPECT_EQ(results[0], std::make_tuple(3, Integers{1, 1}, Integers{10, 10}, Integers{}));
  EXPECT_EQ(results[1], std::make_tuple(3, Integers{}, Integers{}, Integers{10, 10}));
}

TEST(JoinTest, RefusesNoJoinablesAndSeveralCommunicatorsBeforeTheBody) {
  run_ranks(1, [](LocalCommunicator& communicator) {
    LocalCommunicator other = communicator;
    Counter here(communicator, 1);
    Counter there(other, 1);
    const auto body = [] { ADD_FAILURE() << "the body has run"; };
    EXPECT_THROW(join({}, body), UsageError);
    EXPECT_THROW(join({&here, nullptr}, body), UsageError);
    EXPECT_THROW(join({&here, &there}, body), UsageError);
    EXPECT_THROW(join({&here, &here}, body), UsageError);
    EXPECT_EQ(here.left, 1);  // entered once, then refused
    EXPECT_TRUE(communicator.log().empty());
  });
}

}  // namespace
}  // namespace lockstep::test
