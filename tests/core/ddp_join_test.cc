// SPDX-License-Identifier: Apache-2.0
// What DDP does differently inside a join: buffers, no_sync, unused parameters, errors.
#include "core/ddp_join.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "core/error.h"
#include "tests/core/buffered_module.h"
#include "tests/core/parameter_bank.h"

namespace lockstep::test {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Ranks 0, 1, 2 have 3, 2, 2 inputs and set their buffer to 10 * iteration + rank before each.
TEST(DdpJoinTest, BuffersComeFromTheHighestActiveRankAndInTheEndFromTheLastToJoin) {
  for (const bool broadcasts : {true, false}) {
    DdpOptions options;
    options.broadcast_buffers = broadcasts;
    const auto results = run_ranks(3, [&](LocalCommunicator& communicator) {
      const auto module = std::make_shared<NotingImpl>();
      NotingDdp ddp(module, communicator, options);
      const auto rank = static_cast<int>(communicator.rank());
      ddp.join([&] {
        for (int i = 0; i < (rank == 0 ? 3 : 2); ++i) {
          module->set(10 * i + rank);
          ddp().backward();
        }
      });
      return std::make_pair(module->seen, module->factor.item<double>());
    });
    if (broadcasts) {
      EXPECT_EQ(results[0], std::make_pair(Values{2, 12, 20}, 20.0));
      EXPECT_EQ(results[1], std::make_pair(Values{2, 12}, 20.0));
    } else {
      EXPECT_EQ(results[0], std::make_pair(Values{0, 10, 20}, 20.0));
      EXPECT_EQ(results[1], std::make_pair(Values{1, 11}, 11.0));
    }
  }
}

// All ranks end together: the state is rank 2's, not rank 0's (O3).
TEST(DdpJoinTest, AmongRanksThatEndTogetherTheHighestIsAuthoritative) {
  const auto weights = run_ranks(3, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    ddp.join([&] {
      train_once(ddp, all_terms(1));
      const at::NoGradGuard no_grad;
      bank->parameter(0).fill_(mine(communicator));
    });
    return bank->parameter(0).item<double>();
  });
  EXPECT_THAT(weights, Each(3.0));
}

// Windows of one unsynchronised and one synchronised iteration; rank 0 ends after the first window.
// With coefficients 1 and 3: (2 * 1 + 2 * 3) / 2, then (0 + 2 * 3) / 2.
TEST(DdpJoinTest, NoSyncAccumulatesInsideJoin) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator);
    Values seen;
    communicator.clear_log();
    ddp.join([&] {
      for (std::int64_t window = 0; window <= communicator.rank(); ++window) {
        clear_gradients(*bank);
        const auto terms = all_terms(2, communicator.rank() == 0 ? 1 : 3);
        ddp.no_sync([&] { train_once(ddp, terms); });
        train_once(ddp, terms);
        seen.push_back(gradients(*bank)[1]);
      }
    });
    return std::make_pair(seen, communicator.count(CallSite::kBucket));
  });
  EXPECT_EQ(results[0], std::make_pair(Values{4}, std::int64_t{2}));
  EXPECT_EQ(results[1], std::make_pair(Values{4, 3}, std::int64_t{2}));
}

TEST(DdpJoinTest, ActiveRanksThatDisagreeOnNoSyncOrNoGradFailOnEveryRankInThatIteration) {
  for (const bool no_grad_instead : {false, true}) {
    const auto outcomes = try_run_ranks(3, [&](LocalCommunicator& communicator) {
      ParameterBank bank = scalar_bank(1);
      BankDdp ddp(bank.ptr(), communicator);
      ddp.join([&] {
        if (communicator.rank() == 0) {
          return;
        }
        if (communicator.rank() == 1) {
          train_once(ddp, all_terms(1));
        } else if (no_grad_instead) {
          const at::NoGradGuard no_grad;
          ddp(all_terms(1));
        } else {
          ddp.no_sync([&] { train_once(ddp, all_terms(1)); });
        }
      });
    });
    for (const auto& outcome : outcomes) {
      const auto error = outcome.error_as<DdpError>();
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->kind(), "join_plan_mismatch");
      EXPECT_THAT(error->what(), HasSubstr("and 1 synchronise"));
    }
  }
}

// The joined rank stops before a rebuild, buffers and checks, so that nobody may wait for it there.
TEST(DdpJoinTest, RanksThatDisagreeFailEverywhereWhateverElseIsDue) {
  for (const std::string due : {"buffers", "rebuild", "checks"}) {
    DdpOptions options;
    options.broadcast_buffers = due == "buffers";
    options.find_unused_parameters = due != "rebuild";
    options.checks.level = due == "checks" ? Checks::kFull : Checks::kOff;
    const auto outcomes = try_run_ranks(3, [&](LocalCommunicator& communicator) {
      NotingDdp ddp(std::make_shared<NotingImpl>(), communicator, options);
      ddp.join([&] {
        ddp.forward().backward();
        if (communicator.rank() == 1) {
          ddp.forward().backward();
        } else if (communicator.rank() == 2) {
          ddp.no_sync([&] { ddp.forward().backward(); });
        }
      });
    });
    for (const auto& outcome : outcomes) {
      const auto error = outcome.error_as<DdpError>();
      ASSERT_TRUE(error.has_value()) << due;
      EXPECT_EQ(error->kind(), "join_plan_mismatch") << due;
    }
  }
}

// Evaluation between two training iterations issues buffers only; steps given by the script reach
// the joined rank's tags.
TEST(DdpJoinTest, ForwardsWithoutGradientsAreShadowedAndStepsAreTakenOver) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    const auto module = std::make_shared<NotingImpl>();
    NotingDdp ddp(module, communicator);
    communicator.clear_log();
    ddp.join([&] {
      if (communicator.rank() == 0) {
        return;
      }
      ddp.set_step(7);
      ddp().backward();
      {
        const at::NoGradGuard no_grad;
        ddp();
        ddp();
      }
      ddp.set_step(9);
      ddp().backward();
    });
    std::vector<std::string> log;
    for (const CollectiveRecord& record : communicator.log()) {
      if (record.tag.site == CallSite::kBuffers || record.tag.site == CallSite::kBucket) {
        log.push_back(to_string(record));
      }
    }
    return log;
  });
  // Buffers are due after a synchronised forward, and initially (J4).
  EXPECT_THAT(
      results[0],
      ElementsAre("broadcast buffers 0 step 7: 1 Float", "all_reduce bucket 0 step 7: 1 Float",
                  "broadcast buffers 0 step 7: 1 Float", "all_reduce bucket 0 step 9: 1 Float"));
  EXPECT_EQ(results[1], results[0]);
}

// p1 is used by rank 0 only, which joins after one iteration: from then on nobody uses it, and its
// gradient stays as it was. A joined rank that repeated its last map would have it averaged again.
TEST(DdpJoinTest, JoinedRanksUseNoParameter) {
  DdpOptions options;
  options.find_unused_parameters = true;
  const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator, options);
    Values seen;
    ddp.join([&] {
      for (std::int64_t i = 0; i <= communicator.rank(); ++i) {
        train_once(ddp, communicator.rank() == 0 ? all_terms(2, 4) : std::vector<Term>{{0, 4}});
        seen.push_back(gradients(*bank)[1]);
      }
    });
    return seen;
  });
  EXPECT_THAT(results[0], ElementsAre(2));
  EXPECT_THAT(results[1], ElementsAre(2, 2));
}

TEST(DdpJoinTest, EarlyTerminationRaisesEverywhereAndBroadcastsNothing) {
  JoinOptions options;
  options.throw_on_early_termination = true;
  std::vector<std::int64_t> broadcasts(3, -1);
  const auto outcomes = try_run_ranks(3, [&](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    communicator.clear_log();
    try {
      ddp.join(
          [&] {
            for (std::int64_t i = 0; i < 2 + communicator.rank() % 2; ++i) {
              train_once(ddp, all_terms(1));
            }
          },
          options);
    } catch (const DdpError&) {
      broadcasts[static_cast<std::size_t>(communicator.rank())] =
          communicator.count(CallSite::kModuleStates);
      throw;
    }
  });
  EXPECT_THAT(broadcasts, ElementsAre(0, 0, 0));
  EXPECT_THAT(outcomes[0].error_as<DdpError>()->what(), HasSubstr("rank 0 has exhausted"));
  EXPECT_THAT(outcomes[1].error_as<DdpError>()->what(), HasSubstr("at least one rank has"));
  EXPECT_THAT(outcomes[2].error_as<DdpError>()->what(), HasSubstr("rank 2 has exhausted"));
}

// Before and after.

TEST(DdpJoinTest, AForwardWithoutBackwardBeforeTheOthersGoOnIsForgotten) {
  JoinOptions options;
  options.divide_by_initial_world_size = false;
  const auto results = run_ranks(2, [&](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(2);
    BankDdp ddp(bank.ptr(), communicator, one_parameter_per_bucket());
    ddp.join(
        [&] {
          ddp(all_terms(2));
          for (std::int64_t i = 0; i < 3 * communicator.rank(); ++i) {
            train_once(ddp, all_terms(2));  // rebuilds while rank 0 is armed
          }
        },
        options);
    clear_gradients(*bank);
    train_once(ddp, all_terms(2, 2 * mine(communicator)));
    return gradients(*bank)[0];
  });
  EXPECT_THAT(results, ElementsAre(3, 3));
}

TEST(DdpJoinTest, AnExceptionLeavesTheJoinWithoutShadowingAndTrainingGoesOn) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    bool caught = false;
    try {
      ddp.join([&] {
        train_once(ddp, all_terms(1));
        throw std::runtime_error("planned");
      });
    } catch (const std::runtime_error&) {
      caught = true;
    }
    communicator.clear_log();
    clear_gradients(*bank);
    train_once(ddp, all_terms(1, 2 * mine(communicator)));
    return std::make_tuple(caught, gradients(*bank)[0], communicator.count(CallSite::kJoinActive));
  });
  EXPECT_THAT(results, Each(std::make_tuple(true, 3.0, 0)));
}

TEST(DdpJoinTest, AJoinInsideAJoinIsRefused) {
  run_ranks(1, [](LocalCommunicator& communicator) {
    ParameterBank bank = scalar_bank(1);
    BankDdp ddp(bank.ptr(), communicator);
    EXPECT_THROW(ddp.join([&] { ddp.join([] {}); }), UsageError);
    ddp.join([&] { train_once(ddp, all_terms(1)); });
  });
}

}  // namespace
}  // namespace lockstep::test
