// SPDX-License-Identifier: Apache-2.0
// Verdicts over several schedules, and short schedules from long ones.
#include "harness/judge/judge_schedules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "harness/judge/judge.h"
#include "harness/program.h"
#include "harness/scenario.h"

namespace lockstep::harness {
namespace {

// Inside a test, `Run` is GoogleTest's.
using TrainingRun = Run;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TrainingRun run_on(const std::string& schedule) {
  TrainingRun run;
  run.schedule = schedule;
  return run;
}

// Runs of these schedules, the first of which was taken first.
TrainingRun search_of(const std::vector<std::string>& schedules) {
  TrainingRun first = run_on(schedules.front());
  first.search = ScheduleSearch();
  first.search->num_schedules = static_cast<std::int64_t>(schedules.size());
  for (std::size_t i = 1; i < schedules.size(); ++i) {
    ++first.search->num_different;
    first.search->different.push_back(std::make_shared<const TrainingRun>(run_on(schedules[i])));
  }
  return first;
}

// A run fails where its schedule holds all of `needed`.
ScheduleJudge fails_with(const std::vector<std::string>& needed) {
  return {[needed](const TrainingRun& run) {
            CaseResult result;
            result.schedule = run.schedule;
            bool fails = true;
            for (const std::string& part : needed) {
              fails = fails && run.schedule.find(part) != std::string::npos;
            }
            if (fails) {
              result.outcome.kind = OutcomeKind::kDeadlock;
              result.complaints.emplace_back("it hangs");
            }
            return result;
          },
          run_on};
}

TEST(JudgeSchedulesTest, TheFirstScheduleThatFailsIsTakenAndLeftWithWhatItNeeds) {
  const CaseResult result =
      judge_schedules(search_of({"", "1:1 4:c0", "2:0 3:1 7:c1 9:0 12:1 13:c0"}), ExpectSpec(),
                      fails_with({"3:1", "12:1"}));
  EXPECT_EQ(result.schedule, "3:1 12:1");
  EXPECT_THAT(result.complaints, ElementsAre("it hangs"));
  EXPECT_EQ(result.schedules->num_schedules, 3);
}

TEST(JudgeSchedulesTest, RunsThatEndWellWithOtherNumbersAreAComplaintOfTheirOwn) {
  const ScheduleJudge nothing_fails = fails_with({"no such part"});
  const CaseResult result =
      judge_schedules(search_of({"1:1", "4:c0"}), ExpectSpec(), nothing_fails);
  ASSERT_EQ(result.complaints.size(), 1U);
  EXPECT_THAT(result.complaints.front(), HasSubstr("depend on the schedule: those of schedule "
                                                   "\"4:c0\" are not those of \"1:1\""));
  EXPECT_THAT(judge_schedules(search_of({"1:1"}), ExpectSpec(), nothing_fails).complaints,
              IsEmpty());
}

TEST(JudgeSchedulesTest, WithSomeOneScheduleAsExpectedIsEnough) {
  ExpectSpec some;
  some.schedules = "some";
  EXPECT_EQ(judge_schedules(search_of({"3:1", "4:c0"}), some, fails_with({"3:1"})).schedule,
            "4:c0");
  const CaseResult none =
      judge_schedules(search_of({"3:1", "3:1 4:c0"}), some, fails_with({"3:1"}));
  EXPECT_THAT(none.complaints, ElementsAre("it hangs"));
}

TEST(ShrinkScheduleTest, StopsWhenItHasTriedEnough) {
  int num_tried = 0;
  const auto count = [&](const std::string&) {
    ++num_tried;
    return false;
  };
  EXPECT_EQ(shrink_schedule("1:1 2:0 3:1 4:0 5:1", 7, count), "1:1 2:0 3:1 4:0 5:1");
  EXPECT_EQ(num_tried, 7);
  EXPECT_EQ(shrink_schedule("", 7, count), "");
}

const char* const kForgottenWait = R"(
schema = 1
title = "t"
[world]
simulator_only = true
[model]
widths = [3, 2, 2]
bias = false
[train]
steps = 3
batch_per_rank = 1
[ddp]
first_bucket_cap_bytes = 1
bucket_cap_bytes = 1
[[fault]]
kind = "skip_wait"
rank = 0
step = 2
[schedule]
policy = "random"
runs = 20
first_step = 2
[expect]
outcome = "equal"
oracles = ["ranks", "replay"]
)";

TEST(JudgeSchedulesTest, AFailingScheduleComesBackAsAShortScenarioThatFailsAlike) {
  const NamedCase named = parse_scenario_text(kForgottenWait, "test.toml").front();
  const auto simulator = make_sim_executor();
  JudgeOptions options;
  options.executor = simulator.get();
  options.simulator = simulator.get();
  const CaseResult result = judge_case(named, options);
  EXPECT_EQ(result.internal_error, "");
  EXPECT_FALSE(result.as_expected);
  EXPECT_EQ(result.outcome.kind, OutcomeKind::kDiverged);
  const NamedCase again = parse_scenario_text(result.replay_toml, "replay.toml").front();
  EXPECT_EQ(again.value.schedule.policy, "replay");
  // One rank must run on before a collective completes there: very few deviations.
  EXPECT_LE(std::count(result.schedule.begin(), result.schedule.end(), ':'), 3) << result.schedule;
  const CaseResult replayed = judge_case(again, options);
  EXPECT_EQ(replayed.outcome.kind, OutcomeKind::kDiverged);
  EXPECT_EQ(replayed.trace_hash, result.trace_hash);
}

TEST(JudgeSchedulesTest, AReplayThatTheCaseDoesNotTakeIsNoPass) {
  NamedCase named = parse_scenario_text(kForgottenWait, "test.toml").front();
  named.value.schedule = ScheduleSpec();
  named.value.schedule.policy = "replay";
  const auto simulator = make_sim_executor();
  JudgeOptions options;
  options.executor = simulator.get();
  options.simulator = simulator.get();
  EXPECT_TRUE(judge_case(named, options).as_expected);
  named.value.schedule.deviations = "99999:1";
  const CaseResult result = judge_case(named, options);
  ASSERT_EQ(result.complaints.size(), 1U);
  EXPECT_THAT(result.complaints.front(), HasSubstr("does not take the schedule \"99999:1\""));
}

TEST(JudgeSchedulesTest, AsManySchedulesAsThereMayBeAreExhaustive) {
  NamedCase named = parse_scenario_text(kForgottenWait, "test.toml").front();
  named.value.schedule = ScheduleSpec();
  named.value.schedule.policy = "exhaustive";
  named.value.schedule.first_step = 2;
  const auto simulator = make_sim_executor();
  const auto search_with = [&](std::int64_t runs_max) {
    named.value.schedule.runs_max = runs_max;
    return *simulator->execute(compile_subject(named.value)).search;
  };
  const std::int64_t all = search_with(10'000).num_schedules;
  EXPECT_GT(all, 10);
  EXPECT_TRUE(search_with(all).all);
  EXPECT_EQ(search_with(all).num_schedules, all);
  EXPECT_FALSE(search_with(all - 1).all);
  EXPECT_EQ(search_with(all - 1).num_schedules, all - 1);
}

TEST(SameRunTest, SeesWhatJoinLeaves) {
  Case value = parse_scenario_text(
                   "schema = 1\n[train]\nsteps_of_rank = [3, 1]\n[ddp]\njoin = "
                   "\"divide_by_initial\"\n[expect]\noutcome = \"within_bound\"\n",
                   "test.toml")
                   .front()
                   .value;
  const TrainingRun run = make_sim_executor()->execute(compile_subject(value));
  TrainingRun other = run;
  EXPECT_TRUE(same_run(run, other));
  other.ranks[1].final_parameters.bytes.front() ^= 1;
  EXPECT_FALSE(same_run(run, other));
  other = run;
  other.ranks[0].steps.back().optimizer.bytes.push_back(0);
  EXPECT_FALSE(same_run(run, other));
}

TEST(JudgeSchedulesTest, AFailureOfSomeReplaysTheSearchAndASingleRunExpectsItOfAll) {
  NamedCase named = parse_scenario_text(kForgottenWait, "test.toml").front();
  named.value.expect.schedules = "some";
  named.value.expect.outcome = "deadlock";  // which no schedule has
  const auto simulator = make_sim_executor();
  JudgeOptions options;
  options.executor = simulator.get();
  options.simulator = simulator.get();
  const CaseResult result = judge_case(named, options);
  EXPECT_FALSE(result.as_expected);
  EXPECT_FALSE(result.of_one_schedule);
  const Case again = parse_scenario_text(result.replay_toml, "replay.toml").front().value;
  EXPECT_EQ(again.schedule.policy, "random");
  EXPECT_EQ(on_schedule(again, "3:1").expect.schedules, "all");
}

TEST(SimExecutorTest, ARunThatCannotBeRepeatedIsADefect) {
  Program program = compile_subject(parse_scenario_text(kForgottenWait, "test.toml").front().value);
  SimExecutorOptions options;
  options.repeat_one_in = 1;
  EXPECT_NO_THROW(make_sim_executor(options)->execute(program));
  options.before_repeat = [&] { program.value.train.optimizer.lr *= 2; };
  EXPECT_THROW(make_sim_executor(options)->execute(program), InvariantError);
}

}  // namespace
}  // namespace lockstep::harness
