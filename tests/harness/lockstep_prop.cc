// SPDX-License-Identifier: Apache-2.0
// Whole random cases: ranks and references stay in lockstep, bit for bit, step by step.
#include <gtest/gtest.h>
// rapidcheck/gtest.h uses GoogleTest's names and must come after it.
#include <rapidcheck/gtest.h>

#include "harness/judge/judge.h"
#include "harness/scenario.h"
#include "tests/harness/random_case.h"

namespace lockstep::harness {
namespace {

// Inside a test, `Run` is GoogleTest's.
using TrainingRun = Run;
using test::random_case;

TEST(LockstepProps, RanksAndReferencesStayInLockstep) {
  const auto simulator = make_sim_executor();
  const bool holds = rc::check("ranks and references stay in lockstep", [&] {
    const Case value = random_case();
    RC_ASSERT(check_case(value).empty());
    JudgeOptions options;
    options.executor = simulator.get();
    options.simulator = simulator.get();
    const CaseResult result = judge_case({"property", "", value}, options);
    RC_TAG(value.train.sync_on);
    if (!result.as_expected) {
      RC_LOG() << "outcome: " << to_string(result.outcome.kind) << ": " << result.outcome.reason
               << "\n"
               << result.internal_error << "\nas a scenario file:\n"
               << print_case(value);
    }
    RC_ASSERT(result.as_expected);
  });
  EXPECT_TRUE(holds);
}

TEST(LockstepProps, TheScheduleDoesNotChangeABit) {
  const auto simulator = make_sim_executor();
  const bool holds = rc::check("the schedule does not change a bit", [&] {
    Case value = random_case();
    value.world.schedule = "round_robin";
    const TrainingRun first = simulator->execute(compile_subject(value));
    value.world.schedule = "random";
    const TrainingRun second = simulator->execute(compile_subject(value));
    for (std::size_t rank = 0; rank < first.ranks.size(); ++rank) {
      RC_ASSERT(first.ranks[rank].steps.size() == second.ranks[rank].steps.size());
      for (std::size_t at = 0; at < first.ranks[rank].steps.size(); ++at) {
        RC_ASSERT(first.ranks[rank].steps[at].parameters.bytes ==
                  second.ranks[rank].steps[at].parameters.bytes);
      }
    }
  });
  EXPECT_TRUE(holds);
}

TEST(LockstepProps, TheSameCaseHasTheSameTrace) {
  const auto simulator = make_sim_executor();
  const bool holds = rc::check("the same case has the same trace", [&] {
    const Program program = compile_subject(random_case());
    const TrainingRun first = simulator->execute(program);
    const TrainingRun second = simulator->execute(program);
    RC_ASSERT(first.trace_hash == second.trace_hash);
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace lockstep::harness
