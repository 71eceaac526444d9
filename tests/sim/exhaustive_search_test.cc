// SPDX-License-Identifier: Apache-2.0
// All schedules: how many there are, that none is left out, and none taken twice.
#include "sim/exhaustive_search.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <set>

#include "core/error.h"
#include "sim/world.h"
#include "tests/sim/simulate.h"

namespace lockstep::test {
namespace {

using Body = std::function<void(sim::RankContext&)>;

// What each rank lived through: the actors of a rank in their order. Two schedules with the same
// one differ only in the order of independent actors.
using Histories = std::map<std::int64_t, std::vector<sim::Actor>>;

class Recorder final : public sim::Scheduler {
 public:
  explicit Recorder(sim::Scheduler& inner) : inner_(inner) {}
  sim::Actor next(const sim::Decision& decision) override {
    const sim::Actor actor = inner_.next(decision);
    if (actor != sim::kAbandon) {
      histories[sim::rank_of(actor)].push_back(actor);
    }
    return actor;
  }
  Histories histories;

 private:
  sim::Scheduler& inner_;
};

struct Walk {
  std::int64_t num_schedules = 0;
  std::optional<double> num_orders;
  std::set<Histories> histories;
};

Walk walk(std::int64_t world_size, bool reduce, const Body& body) {
  sim::ExhaustiveSearch search(reduce);
  Walk result;
  while (search.begin()) {
    Recorder recorder(search);
    sim::WorldOptions options = world_of(world_size);
    options.scheduler = &recorder;
    if (!sim::run_world(options, body).abandoned) {
      result.histories.insert(recorder.histories);
    }
  }
  result.num_schedules = search.num_schedules();
  result.num_orders = search.num_orders();
  return result;
}

void pass_yield_points(sim::RankContext& rank, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    rank.observer().on_event({EventKind::kGradientReady, i});
  }
}

TEST(ExhaustiveSearchTest, CountsTheOrdersOfIndependentRanksAndReducesThemToOne) {
  // Two ranks of three parts each (two yield points): 6! / (3! 3!) = 20; three of two: 6! / 2^3.
  const Body two = [](sim::RankContext& rank) { pass_yield_points(rank, 2); };
  const Body three = [](sim::RankContext& rank) { pass_yield_points(rank, 1); };
  EXPECT_EQ(walk(2, false, two).num_schedules, 20);
  EXPECT_EQ(walk(3, false, three).num_schedules, 90);
  EXPECT_EQ(walk(2, true, two).num_schedules, 1);
  EXPECT_EQ(walk(3, true, three).num_schedules, 1);
  EXPECT_EQ(walk(2, true, two).num_orders, 20.0);
  EXPECT_EQ(walk(3, true, three).num_orders, 90.0);
}

TEST(ExhaustiveSearchTest, ReductionTakesEveryHistoryOnceAndLeavesNoneOut) {
  const std::vector<std::pair<std::int64_t, Body>> programs = {
      {2, [](sim::RankContext& rank) { sum_and_wait(rank, at::ones({2})); }},
      {2,
       [](sim::RankContext& rank) {
         const at::Tensor a = at::ones({1}), b = at::ones({1});
         const auto first = rank.communicator().all_reduce(a, ReduceOp::kSum, {});
         const auto second = rank.communicator().all_reduce(b, ReduceOp::kSum, {});
         second->wait();
         first->wait();
       }},
      {3,  // one that forgets to wait
       [](sim::RankContext& rank) {
         rank.communicator().all_reduce(at::ones({1}), ReduceOp::kSum, {});
       }},
      {2,  // one that never ends well
       [](sim::RankContext& rank) {
         const at::Tensor a = at::ones({1});
         const auto work = rank.communicator().all_reduce(a, ReduceOp::kSum, {});
         if (rank.rank() == 0) {
           barrier_and_wait(rank);
         }
         work->wait();
       }},
      {2,  // one in which time passes
       [](sim::RankContext& rank) {
         rank.sleep_ns(1 + rank.rank());
         pass_yield_points(rank, 1);
         rank.sleep_ns(3);
         sum_and_wait(rank, at::ones({1}));
       }},
      {2,  // one whose ranks disagree
       [](sim::RankContext& rank) { sum_and_wait(rank, at::ones({1 + rank.rank()})); }},
  };
  for (std::size_t i = 0; i < programs.size(); ++i) {
    SCOPED_TRACE(i);
    const auto& [world_size, body] = programs[i];
    const Walk all = walk(world_size, false, body);
    const Walk reduced = walk(world_size, true, body);
    EXPECT_EQ(reduced.histories, all.histories);
    EXPECT_EQ(reduced.num_schedules, static_cast<std::int64_t>(all.histories.size()));
    EXPECT_GT(all.num_schedules, reduced.num_schedules);
    if (i + 1 < programs.size()) {
      EXPECT_EQ(reduced.num_orders, static_cast<double>(all.num_schedules));
    } else {
      EXPECT_EQ(reduced.num_orders, std::nullopt) << "a failure is not counted";
    }
  }
}

TEST(ExhaustiveSearchTest, FindsTheOneScheduleInWhichAMissingWaitShows) {
  // Rank 0 reads between the issue and the wait. By default the collective is complete by then, so
  // that nothing looks wrong.
  std::set<double> results;
  const Body body = [&](sim::RankContext& rank) {
    const at::Tensor tensor = at::ones({1});
    if (rank.rank() == 0) {
      pass_yield_points(rank, 2);
    }
    const auto work = rank.communicator().all_reduce(tensor, ReduceOp::kSum, {});
    if (rank.rank() == 0) {
      results.insert(tensor.item<double>());
    }
    work->wait();
  };
  walk(2, true, body);
  EXPECT_EQ(results, (std::set<double>{1.0, 2.0}));
  results.clear();
  sim::WorldOptions late;
  late.world_size = 2;
  late.schedule.policy = sim::SchedulePolicy::kReplay;
  late.schedule.schedule = sim::parse_schedule("0:1");  // rank 1 goes first
  sim::run_world(late, body);
  EXPECT_EQ(results, (std::set<double>{2.0}));
}

TEST(ExhaustiveSearchTest, AProgramThatDoesNotAlwaysDoTheSameIsRefused) {
  int num_runs = 0;
  const Body body = [&](sim::RankContext& rank) {
    if (rank.rank() == 0) {
      ++num_runs;
    }
    if (num_runs == 2) {
      return;  // no yield points this time
    }
    pass_yield_points(rank, 2);
  };
  EXPECT_THROW(walk(2, false, body), InvariantError);
}

}  // namespace
}  // namespace lockstep::test
