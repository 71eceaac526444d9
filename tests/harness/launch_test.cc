// SPDX-License-Identifier: Apache-2.0
// [launch]: what may be said, which processes it stands for, and what the simulator makes of it.
#include "harness/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "harness/executor.h"
#include "harness/program.h"
#include "harness/scenario.h"
#include "tests/harness/scenario_findings.h"

namespace lockstep::test {
namespace {

using harness::Case;
using harness::Ending;
using harness::ProcessSpec;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two ranks that train one step; `body` from line 4 on.
std::string file_with(const std::string& body) {
  return "schema = 1\nexpect.outcome = \"within_bound\"\ntrain.steps = 1\n" + body;
}

harness::Run simulate(const std::string& body) {
  return harness::make_sim_executor()->execute(
      harness::compile_subject(only_case(file_with(body))));
}

TEST(LaunchTest, LeftOutItIsNotAskedForAndEveryRankHasAProcess) {
  const Case value = only_case(file_with("world.ranks = 3\n"));
  EXPECT_FALSE(value.launch.is_asked_for());
  const std::vector<ProcessSpec> processes = processes_of(value);
  ASSERT_EQ(processes.size(), 3U);
  EXPECT_EQ(processes[2].rank, 2);
  EXPECT_EQ(processes[2].world_size, 3);
}

TEST(LaunchTest, ProcessesTakeWhatTheyAreNotToldFromTheWorldAndTheLaunch) {
  const Case value = only_case(file_with(
      "[launch]\ninterface = \"lo\"\nprocesses = [{ rank = 1 }, { world_size = 2, interface = "
      "\"^lo\" }]\n"));
  EXPECT_TRUE(value.launch.is_asked_for());
  const std::vector<ProcessSpec> processes = processes_of(value);
  EXPECT_EQ(processes[0].world_size, 2);
  EXPECT_EQ(processes[0].interface, "lo");
  EXPECT_EQ(processes[1].interface, "^lo");
}

TEST(LaunchTest, WhatCannotBeIsRefusedWithItsPlace) {
  EXPECT_THAT(findings_of(file_with("[launch]\nprocesses = [{ host = \"b\" }]\n")),
              ElementsAre(finding("5:16", {"there is no host 'b'"})));
  EXPECT_THAT(findings_of(file_with("[launch]\nhosts = [{ name = \"a\" }, { name = \"a\" }]\n")),
              ElementsAre(HasSubstr("there are two hosts 'a'")));
  EXPECT_THAT(findings_of(file_with(
                  "[launch]\nhosts = [{ name = \"a\", interfaces = { eth0 = \"10.0\" } }]\n")),
              IsEmpty())
      << "10.0 is a way to write 10.0.0.0";
  EXPECT_THAT(findings_of(file_with(
                  "[launch]\nhosts = [{ name = \"a\", names = { a = \"localhost\" } }]\n")),
              ElementsAre(HasSubstr("'localhost' is no address")));
  EXPECT_THAT(findings_of(file_with("[launch]\nprocesses = [{ rank = 0, world_size = 3 }]\n")),
              ElementsAre(HasSubstr("that process believes in 3 ranks")));
  EXPECT_THAT(findings_of(file_with("[launch]\nport = 1\n[schedule]\npolicy = \"exhaustive\"\n")),
              ElementsAre(HasSubstr("expected \"random\" or \"pct\"")));
  EXPECT_THAT(findings_of(file_with("[[expect.ends]]\nrank = 2\nending = \"failed\"\n")),
              ElementsAre(HasSubstr("there is no rank 2; expected 0 to 1")));
  EXPECT_THAT(findings_of(file_with("[[expect.ends]]\nparameters_of_step = 1\n")),
              ElementsAre(HasSubstr("there is no step 1")));
}

TEST(LaunchTest, ThoseThatMeetTrainAsIfThereHadBeenNoLaunch) {
  const harness::Run plain = simulate(""), launched = simulate("[launch]\ninterface = \"lo\"\n");
  EXPECT_TRUE(same_run(plain, launched));
  EXPECT_EQ(launched.ranks[1].listens_on, "rank 1 on host host listens on lo (127.0.0.1)");
  EXPECT_NE(plain.trace_hash, launched.trace_hash);
}

TEST(LaunchTest, WhereSomeAreRefusedNobodyTrains) {
  const harness::Run run =
      simulate("[launch]\nprocesses = [{ rank = 0 }, { rank = 1 }, { rank = 1 }]\n");
  EXPECT_TRUE(is_failed_launch(run));
  ASSERT_EQ(run.ranks.size(), 3U);
  EXPECT_EQ(run.ranks[2].ending, Ending::kFailed);
  EXPECT_EQ(run.ranks[2].error_kind, "rank_taken");
  EXPECT_GE(run.ranks[2].ended_at_ns, 0);
  EXPECT_THAT(run.ranks[0].steps, IsEmpty());
}

TEST(LaunchTest, OfTwoRunsThatMeetTheFirstOneIsRecorded) {
  const harness::Run run = simulate(
      "[launch]\nprocesses = [{ rank = 1 }, { rank = 0, run = \"B\", store = \"b\" }, { rank = 0 "
      "}, { rank = 1, run = \"B\", store = \"b\" }]\n");
  EXPECT_FALSE(is_failed_launch(run));
  ASSERT_EQ(run.ranks.size(), 2U);
  EXPECT_EQ(run.ranks[0].ending, Ending::kFinished);
  EXPECT_EQ(run.ranks[1].steps.size(), 1U);
}

TEST(LaunchTest, AProcessThatDiesLeavesNothingButItsStatus) {
  const std::string fault = "[world]\nranks = 3\n[[fault]]\nrank = 1\nstep = 0\nkind = ";
  harness::Run run = simulate(fault + "\"crash\"\n");
  EXPECT_EQ(run.ranks[1].ending, Ending::kCrashed);
  EXPECT_EQ(run.ranks[1].signal, 9);
  EXPECT_EQ(run.ranks[0].error_kind, "peer_lost");
  EXPECT_EQ(run.ranks[0].parameters_at_end, checksum(run.ranks[0].initial_parameters));
  run = simulate(fault + "\"exit\"\nbucket = 0\n");
  EXPECT_EQ(run.ranks[1].error_kind, "exit");
  EXPECT_THAT(run.ranks[2].error_message, HasSubstr("bucket 0 at step 0"));
}

}  // namespace
}  // namespace lockstep::test
