// SPDX-License-Identifier: Apache-2.0
// Deadlocks: found at once, explained, and unwound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/error.h"
#include "sim/wait_for_graph.h"
#include "sim/world.h"
#include "tests/sim/simulate.h"

namespace lockstep::test {
namespace {

using sim::RankContext;
using sim::RankEnd;
using sim::WorldResult;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(WorldDeadlockTest, NamesTheRankThatLeftEarly) {
  const WorldResult result = simulate(3, [](RankContext& rank) {
    sum_and_wait(rank, at::ones({42}), bucket_tag(0, 0));
    if (rank.rank() != 1) {
      sum_and_wait(rank, at::ones({42}), bucket_tag(1, 0));
    }
  });
  EXPECT_TRUE(result.deadlock);
  EXPECT_EQ(result.ranks[1].end, RankEnd::kFinished);
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(result.ranks[rank].end, RankEnd::kWaiting);
    EXPECT_EQ(result.ranks[rank].error, nullptr);
    EXPECT_EQ(result.ranks[rank].waiting_in->seq, 1);
    EXPECT_EQ(result.ranks[rank].waiting_in->tag, bucket_tag(1, 0));
    EXPECT_THAT(result.ranks[rank].waiting_for, ElementsAre(1));
  }
  EXPECT_EQ(wait_for_text(result),
            "rank 0 waits in collective 1, all_reduce (bucket 0, step 1, 42 x Float), for rank 1\n"
            "rank 1 finished\n"
            "rank 2 waits in collective 1, all_reduce (bucket 0, step 1, 42 x Float), for rank "
            "1\n");
}

TEST(WorldDeadlockTest, NamesTheRankThatFailedAndItsError) {
  const WorldResult result = simulate(2, [](RankContext& rank) {
    if (rank.rank() == 1) {
      throw std::runtime_error("out of \"memory\"");
    }
    barrier_and_wait(rank);
  });
  EXPECT_TRUE(result.deadlock);
  EXPECT_EQ(result.ranks[0].end, RankEnd::kWaiting);
  EXPECT_EQ(result.ranks[1].end, RankEnd::kFailed);
  EXPECT_EQ(wait_for_text(result),
            "rank 0 waits in collective 0, barrier (barrier), for rank 1\n"
            "rank 1 failed: out of \"memory\"\n");
  EXPECT_EQ(wait_for_dot(result),
            "digraph wait_for {\n"
            "  r0 [shape=box, label=\"rank 0\\nwaits in collective 0, barrier (barrier)\"];\n"
            "  r0 -> r1;\n"
            "  r1 [shape=ellipse, label=\"rank 1\\nfailed: out of \\\"memory\\\"\"];\n"
            "}\n");
}

TEST(WorldDeadlockTest, TellsRanksApartThatWaitInDifferentCollectives) {
  const WorldResult result = simulate(4, [](RankContext& rank) {
    Communicator& communicator = rank.communicator();
    if (rank.rank() == 3) {
      return;
    }
    const auto first = communicator.all_reduce(at::ones({1}), ReduceOp::kSum, bucket_tag(0, 0));
    if (rank.rank() == 0) {
      communicator.all_reduce(at::ones({1}), ReduceOp::kSum, bucket_tag(0, 1))->wait();
    } else {
      first->wait();
    }
  });
  EXPECT_TRUE(result.deadlock);
  EXPECT_EQ(result.ranks[0].waiting_in->seq, 1);
  EXPECT_THAT(result.ranks[0].waiting_for, ElementsAre(1, 2, 3));
  EXPECT_EQ(result.ranks[1].waiting_in->seq, 0);
  EXPECT_THAT(result.ranks[1].waiting_for, ElementsAre(3));
  EXPECT_THAT(wait_for_text(result), HasSubstr("for ranks 1, 2, 3\n"));
}

TEST(WorldDeadlockTest, IsNoneWhereTheMissingRankOnlySleeps) {
  const WorldResult result = simulate(2, [](RankContext& rank) {
    if (rank.rank() == 1) {
      rank.sleep_ns(1'000'000'000'000);
    }
    barrier_and_wait(rank);
  });
  EXPECT_FALSE(result.deadlock);
}

TEST(WorldDeadlockTest, IsNoneWhereAnIssuedCollectiveIsNeverWaitedFor) {
  const WorldResult result = simulate(2, [](RankContext& rank) {
    if (rank.rank() == 0) {
      rank.communicator().barrier({});
    }
  });
  EXPECT_FALSE(result.deadlock);
  EXPECT_EQ(result.ranks[0].end, RankEnd::kFinished);
}

TEST(WorldDeadlockTest, CallsBackWhileRanksAreParkedAndThenUnwindsThem) {
  std::vector<std::string> log;
  struct Unwound {
    std::vector<std::string>& log;
    ~Unwound() { log.emplace_back("unwound"); }
  };
  int progress = 0;  // lives on no rank's stack but is written by one
  sim::run_world(
      world_of(2),
      [&](RankContext& rank) {
        const Unwound unwound{log};
        if (rank.rank() == 0) {
          progress = 7;
          barrier_and_wait(rank);
          log.emplace_back("not reached");
        }
      },
      [&] { log.push_back("deadlock at " + std::to_string(progress)); });
  EXPECT_THAT(log, ElementsAre("unwound", "deadlock at 7", "unwound"));
}

TEST(WorldDeadlockTest, DoesNotCallBackWithoutADeadlock) {
  int num_calls = 0;
  sim::run_world(world_of(2), barrier_and_wait, [&] { ++num_calls; });
  EXPECT_EQ(num_calls, 0);
}

TEST(WorldDeadlockTest, UnwindsRanksBeforeItRethrowsWhatTheCallbackThrew) {
  const auto alive = std::make_shared<int>(0);
  EXPECT_THROW(sim::run_world(
                   world_of(2),
                   [alive](RankContext& rank) {
                     const auto copy = alive;
                     if (rank.rank() == 0) {
                       barrier_and_wait(rank);
                     }
                   },
                   [] { throw std::logic_error("callback"); }),
               std::logic_error);
  EXPECT_EQ(alive.use_count(), 1);
}

TEST(WorldDeadlockTest, RestoresTheCallersGenerator) {
  torch::manual_seed(5);
  const at::Tensor expected = at::rand({4});
  torch::manual_seed(5);
  simulate(2, [](RankContext& rank) {
    at::rand({100 * (1 + rank.rank())});
    if (rank.rank() == 1) {
      barrier_and_wait(rank);
    }
  });
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

TEST(WorldDeadlockTest, EndsARankThatSwallowsItsCancellation) {
  int num_refused = 0;
  const WorldResult result = simulate(2, [&](RankContext& rank) {
    if (rank.rank() == 1) {
      return;
    }
    const std::vector<std::function<void()>> attempts = {
        [&] { barrier_and_wait(rank); },
        [&] { rank.communicator().all_reduce(at::ones({1}), ReduceOp::kSum, {}); },
        [&] { rank.yield(); },
        [&] { rank.sleep_ns(5); },
    };
    for (const auto& attempt : attempts) {
      try {
        attempt();
      } catch (const std::exception&) {
        ++num_refused;
      }
    }
    rank.observer().on_event({EventKind::kGradientReady, 0});
    throw std::runtime_error("something else altogether");
  });
  EXPECT_EQ(num_refused, 4);
  EXPECT_EQ(result.ranks[0].end, RankEnd::kWaiting);
  EXPECT_EQ(result.ranks[0].waiting_in->seq, 0);
  EXPECT_EQ(result.ranks[0].error, nullptr);
}

TEST(WorldDeadlockTest, IsNotTakenForAnErrorOfTheLibraryByTheScript) {
  bool caught = false;
  simulate(2, [&](RankContext& rank) {
    if (rank.rank() == 0) {
      try {
        barrier_and_wait(rank);
      } catch (const Error&) {
        caught = true;
      }
    }
  });
  EXPECT_FALSE(caught);
}

// Backward of w * x with a hook on w's gradient that waits for a collective, as a reducer does.
void backward_that_waits(RankContext& rank) {
  at::Tensor weight = at::ones({3}).requires_grad_();
  weight.register_hook([&](const at::Tensor& gradient) {
    at::Tensor sum = gradient.clone();
    sum_and_wait(rank, sum, bucket_tag(0, 0));
    return sum;
  });
  (weight * static_cast<double>(1 + rank.rank())).sum().backward();
  EXPECT_EQ(weight.grad()[0].item<float>(), 3);
}

TEST(WorldDeadlockTest, UnwindsARankFromInsideBackward) {
  for (int repetition = 0; repetition < 3; ++repetition) {
    const WorldResult stuck = simulate(2, [](RankContext& rank) {
      if (rank.rank() == 0) {
        backward_that_waits(rank);
      }
    });
    EXPECT_TRUE(stuck.deadlock);
    EXPECT_EQ(stuck.ranks[0].end, RankEnd::kWaiting);
    EXPECT_EQ(stuck.ranks[0].waiting_in->tag, bucket_tag(0, 0));
    // The threads that were unwound serve again, LibTorch's engine on them included.
    const WorldResult sound = simulate(2, backward_that_waits);
    EXPECT_EQ(sound.ranks[0].end, RankEnd::kFinished) << message_of<Error>(sound.ranks[0].error);
    EXPECT_EQ(sound.ranks[1].end, RankEnd::kFinished) << message_of<Error>(sound.ranks[1].error);
  }
}

TEST(WorldDeadlockTest, UnwindsARankFromACallbackAtTheEndOfBackward) {
  const WorldResult result = simulate(2, [](RankContext& rank) {
    if (rank.rank() == 1) {
      return;
    }
    at::Tensor weight = at::ones({3}).requires_grad_();
    weight.register_hook([&](const at::Tensor& gradient) {
      torch::autograd::Engine::get_default_engine().queue_callback([&] { barrier_and_wait(rank); });
      return gradient;
    });
    weight.sum().backward();
  });
  EXPECT_TRUE(result.deadlock);
  EXPECT_EQ(result.ranks[0].end, RankEnd::kWaiting);
}

}  // namespace
}  // namespace lockstep::test
