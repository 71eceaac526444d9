// SPDX-License-Identifier: Apache-2.0
// Drawn scripts: ranks and references stay in lockstep, bit for bit, step by step.
#include <gtest/gtest.h>
// rapidcheck/gtest.h uses GoogleTest's names and must come after it.
#include <rapidcheck/gtest.h>

#include "harness/fuzz/draw/generator.h"
#include "harness/judge/judge.h"
#include "harness/program.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {
namespace {

// Inside a test, `Run` is GoogleTest's.
using TrainingRun = Run;

TEST(LockstepProps, RanksAndReferencesStayInLockstep) {
  const auto simulator = make_sim_executor();
  const bool holds = rc::check("ranks and references stay in lockstep", [&] {
    const Case value = *scripts(Space());
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
    Case value = *scripts(Space());
    value.schedule = ScheduleSpec();
    const TrainingRun first = simulator->execute(compile_subject(value));
    for (const char* policy : {"random", "pct"}) {
      value.schedule.policy = policy;
      RC_ASSERT(same_run(first, simulator->execute(compile_subject(value))));
    }
  });
  EXPECT_TRUE(holds);
}

TEST(LockstepProps, TheSameCaseHasTheSameTrace) {
  const auto simulator = make_sim_executor();
  const bool holds = rc::check("the same case has the same trace", [&] {
    const Case value = *scripts(Space());
    RC_PRE(value.schedule.policy != "exhaustive");
    const Program program = compile_subject(value);
    const TrainingRun first = simulator->execute(program);
    const TrainingRun second = simulator->execute(program);
    RC_ASSERT(first.trace_hash == second.trace_hash);
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace lockstep::harness::fuzz
