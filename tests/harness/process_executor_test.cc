// SPDX-License-Identifier: Apache-2.0
// Ranks in real processes: their records, and every way in which they can come to grief.
#include "harness/execute/process_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>

#include "core/error.h"

namespace lockstep::harness {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Where nothing should ever be given up because of the time it takes.
constexpr double kNever_s = 3'600.0;
// Where only the limit can end the case.
constexpr double kSoon_s = 0.5;

ProcessExecutorOptions options(double hang_after_seconds) {
  ProcessExecutorOptions result;
  result.hang_after_seconds = hang_after_seconds;
  result.binary = LOCKSTEP_PLANTED_WORKER;
  return result;
}

Case two_ranks(const std::string& title = "two ranks") {
  Case value;
  value.title = title;
  value.world.ranks = 2;
  return value;
}

Run run_planted(const std::string& deed, double hang_after_seconds) {
  ProcessExecutor executor(options(hang_after_seconds));
  return executor.execute(compile_subject(two_ranks("plant run " + deed + " 1")));
}

void expect_waits_for_rank_1(const RankRun& rank) {
  EXPECT_EQ(rank.ending, Ending::kWaiting);
  ASSERT_TRUE(rank.waiting.has_value());
  EXPECT_EQ(rank.waiting->collective, "all_reduce");
  EXPECT_EQ(rank.waiting->site, "script");
  EXPECT_EQ(rank.waiting->seq, 1);
  EXPECT_EQ(rank.waiting->step, 4);
  EXPECT_EQ(rank.waiting->numel, 3);
  EXPECT_EQ(rank.waiting->dtype, "Float");
  EXPECT_THAT(rank.waiting->waiting_for, ElementsAre(1));
  EXPECT_EQ(rank.at_phase, "planted");
  EXPECT_EQ(rank.at_step, 4);
}

/// One executor for all tests that leave their workers in good health: starting them is most of
/// what a test costs.
class ProcessExecutorTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { shared_ = new ProcessExecutor(options(kNever_s)); }
  static void TearDownTestSuite() {
    delete shared_;
    shared_ = nullptr;
  }
  static harness::Run run_case(const Case& value) {
    return shared_->execute(compile_subject(value));
  }

  static ProcessExecutor* shared_;
};

ProcessExecutor* ProcessExecutorTest::shared_ = nullptr;

TEST_F(ProcessExecutorTest, RecordsEveryStepOfEveryRank) {
  Case value = two_ranks();
  value.train.steps = 3;
  const harness::Run run = run_case(value);
  ASSERT_EQ(run.ranks.size(), 2U);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(run.ranks[rank].rank, static_cast<std::int64_t>(rank));
    EXPECT_EQ(run.ranks[rank].ending, Ending::kFinished) << run.ranks[rank].error_message;
    ASSERT_EQ(run.ranks[rank].steps.size(), 3U);
    EXPECT_FALSE(run.ranks[rank].steps[2].parameters.bytes.empty());
  }
  EXPECT_EQ(run.ranks[0].steps[2].parameters.bytes, run.ranks[1].steps[2].parameters.bytes);
}

TEST_F(ProcessExecutorTest, HoldsTheBitsOfTheSimulator) {
  Case value = two_ranks();
  value.world.ranks = 3;
  value.model.widths = {8, 16, 16, 4};
  value.ddp.first_bucket_cap_bytes = value.ddp.bucket_cap_bytes = 64;
  value.train.micro_batches = 2;
  const Program program = compile_subject(value);
  const harness::Run real = shared_->execute(program);
  const harness::Run simulated = make_sim_executor()->execute(program);
  ASSERT_EQ(real.ranks.size(), simulated.ranks.size());
  for (std::size_t rank = 0; rank < real.ranks.size(); ++rank) {
    ASSERT_EQ(real.ranks[rank].steps.size(), simulated.ranks[rank].steps.size());
    for (std::size_t step = 0; step < real.ranks[rank].steps.size(); ++step) {
      EXPECT_EQ(real.ranks[rank].steps[step].gradients.bytes,
                simulated.ranks[rank].steps[step].gradients.bytes);
      EXPECT_EQ(real.ranks[rank].steps[step].parameters.bytes,
                simulated.ranks[rank].steps[step].parameters.bytes);
    }
    EXPECT_EQ(real.ranks[rank].bucket_all_reduces, simulated.ranks[rank].bucket_all_reduces);
  }
}

TEST_F(ProcessExecutorTest, AWorldOfOneNeedsNoPeers) {
  Case value = two_ranks();
  value.world.ranks = 1;
  const harness::Run run = run_case(value);
  ASSERT_EQ(run.ranks.size(), 1U);
  EXPECT_EQ(run.ranks[0].ending, Ending::kFinished) << run.ranks[0].error_message;
  EXPECT_EQ(run.ranks[0].steps.size(), 3U);
}

TEST_F(ProcessExecutorTest, ASleepingRankIsAlive) {
  ProcessExecutor executor(options(kSoon_s));
  Case value = two_ranks();
  AtSpec at;
  at.ranks = {1};
  at.steps = {1};
  at.sleep_ms = static_cast<std::int64_t>(kSoon_s * 3'000);
  value.at = {at};
  const harness::Run run = executor.execute(compile_subject(value));
  EXPECT_EQ(run.ranks[0].ending, Ending::kFinished) << run.ranks[0].error_message;
  EXPECT_EQ(run.ranks[1].ending, Ending::kFinished) << run.ranks[1].error_message;
}

TEST_F(ProcessExecutorTest, RecordsHoldNothingOfTimeOrProcess) {
  const harness::Run first = run_case(two_ranks());
  const harness::Run second = run_case(two_ranks());
  ASSERT_EQ(first.ranks.size(), second.ranks.size());
  for (std::size_t rank = 0; rank < first.ranks.size(); ++rank) {
    EXPECT_EQ(serialize(first.ranks[rank]), serialize(second.ranks[rank]));
  }
}

TEST_F(ProcessExecutorTest, KeepsItsWorkersAndAddsToThem) {
  run_case(two_ranks());
  const std::vector<pid_t> before = shared_->pool().pids();
  Case larger = two_ranks();
  larger.world.ranks = static_cast<std::int64_t>(before.size()) + 1;
  run_case(larger);
  const std::vector<pid_t> after = shared_->pool().pids();
  ASSERT_EQ(after.size(), before.size() + 1);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), after.begin()));
}

TEST_F(ProcessExecutorTest, ARankThatLeavesMakesTheOthersWait) {
  Case value = two_ranks();
  AtSpec at;
  at.ranks = {1};
  at.steps = {2};  // after the buckets were rebuilt
  at.leave = true;
  value.at = {at};
  const harness::Run run = run_case(value);
  EXPECT_EQ(run.ranks[1].ending, Ending::kLeft);
  EXPECT_EQ(run.ranks[1].steps.size(), 2U);
  const RankRun& waits = run.ranks[0];
  EXPECT_EQ(waits.ending, Ending::kWaiting);
  ASSERT_TRUE(waits.waiting.has_value());
  EXPECT_EQ(waits.waiting->collective, "all_reduce");
  EXPECT_EQ(waits.waiting->site, "bucket");
  EXPECT_EQ(waits.waiting->step, 2);
  EXPECT_EQ(waits.waiting->bucket, 0);
  EXPECT_THAT(waits.waiting->waiting_for, ElementsAre(1));
  EXPECT_EQ(waits.at_step, 2);
}

TEST_F(ProcessExecutorTest, ARankThatFailsMakesTheOthersWait) {
  Case value = two_ranks();
  AtSpec at;
  at.ranks = {0};
  at.steps = {0};
  at.raise = "enough";
  value.at = {at};
  const harness::Run run = run_case(value);
  EXPECT_EQ(run.ranks[0].ending, Ending::kFailed);
  EXPECT_EQ(run.ranks[0].error_kind, "script");
  EXPECT_THAT(run.ranks[0].error_message, HasSubstr("enough"));
  EXPECT_EQ(run.ranks[1].ending, Ending::kWaiting);
  ASSERT_TRUE(run.ranks[1].waiting.has_value());
  EXPECT_THAT(run.ranks[1].waiting->waiting_for, ElementsAre(0));
}

TEST_F(ProcessExecutorTest, WaitsLikeTheSimulatorSays) {
  Case value = two_ranks();
  value.model.kind = "graph";
  value.model.blocks = {{"trunk", "linear 4 4"}, {"vision", "linear 4 8"}, {"text", "linear 4 2"}};
  value.model.forward = {{"trunk"}, {"vision", "text"}};
  AtSpec at;
  at.ranks = {1};
  at.steps = {1};
  at.skip = {"vision"};
  value.at = {at};
  const Program program = compile_subject(value);
  const harness::Run simulated = make_sim_executor()->execute(program);
  const harness::Run real = shared_->execute(program);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const RankRun& expected = simulated.ranks[rank];
    const RankRun& actual = real.ranks[rank];
    EXPECT_EQ(actual.ending, expected.ending) << rank;
    EXPECT_EQ(actual.error_kind, expected.error_kind);
    EXPECT_EQ(actual.at_step, expected.at_step);
    EXPECT_EQ(actual.at_phase, expected.at_phase);
    ASSERT_EQ(actual.waiting.has_value(), expected.waiting.has_value());
    if (actual.waiting) {
      EXPECT_EQ(actual.waiting->collective, expected.waiting->collective);
      EXPECT_EQ(actual.waiting->site, expected.waiting->site);
      EXPECT_EQ(actual.waiting->seq, expected.waiting->seq);
      EXPECT_EQ(actual.waiting->step, expected.waiting->step);
      EXPECT_EQ(actual.waiting->bucket, expected.waiting->bucket);
      EXPECT_EQ(actual.waiting->numel, expected.waiting->numel);
      EXPECT_EQ(actual.waiting->dtype, expected.waiting->dtype);
      EXPECT_EQ(actual.waiting->waiting_for, expected.waiting->waiting_for);
    }
    ASSERT_EQ(actual.never_ready.size(), expected.never_ready.size());
    for (std::size_t i = 0; i < actual.never_ready.size(); ++i) {
      EXPECT_EQ(actual.never_ready[i].parameter, expected.never_ready[i].parameter);
      EXPECT_EQ(actual.never_ready[i].step, expected.never_ready[i].step);
      EXPECT_EQ(actual.never_ready[i].micro_batch, expected.never_ready[i].micro_batch);
    }
    ASSERT_EQ(actual.collectives.size(), expected.collectives.size());
    EXPECT_EQ(actual.collectives.back().site, expected.collectives.back().site);
    EXPECT_EQ(actual.collectives.back().bucket, expected.collectives.back().bucket);
  }
  ASSERT_THAT(simulated.ranks[1].never_ready, ::testing::Not(IsEmpty()));
  EXPECT_EQ(simulated.ranks[1].never_ready[0].step, 1);
}

TEST_F(ProcessExecutorTest, WorkersOutliveADeadlock) {
  run_case(two_ranks());
  const std::vector<pid_t> before = shared_->pool().pids();
  const harness::Run stuck = run_case(two_ranks("plant run fail 1"));
  expect_waits_for_rank_1(stuck.ranks[0]);
  EXPECT_EQ(stuck.ranks[1].error_kind, "planted");
  EXPECT_EQ(shared_->pool().pids(), before);
  const harness::Run healthy = run_case(two_ranks());
  EXPECT_EQ(healthy.ranks[0].ending, Ending::kFinished);
  EXPECT_EQ(healthy.ranks[1].ending, Ending::kFinished);
  EXPECT_EQ(shared_->pool().pids(), before);
}

TEST_F(ProcessExecutorTest, RanksThatMeetInDifferentCollectivesAreAMismatch) {
  Case value = two_ranks();
  AtSpec at;
  at.ranks = {1};
  at.steps = {1};
  at.collective = "all_reduce";
  at.collective_numel = 5;
  value.at = {at};
  const harness::Run run = run_case(value);
  ASSERT_TRUE(run.mismatch.has_value());
  EXPECT_EQ(run.mismatch->first_rank, 0);
  EXPECT_EQ(run.mismatch->second_rank, 1);
  EXPECT_NE(run.mismatch->first, run.mismatch->second);
  EXPECT_THAT(run.mismatch->second, HasSubstr("5 x Float"));
  EXPECT_EQ(run.ranks[0].error_kind, "desync");
}

TEST_F(ProcessExecutorTest, ADeadWorkerIsReplacedBeforeTheNextCase) {
  run_case(two_ranks());
  const std::vector<pid_t> before = shared_->pool().pids();
  ASSERT_EQ(::kill(before[0], SIGKILL), 0);
  // Until the kernel has closed its end of the channel, the pool cannot know.
  siginfo_t info{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(before[0]), &info, WEXITED | WNOWAIT), 0);
  const harness::Run healthy = run_case(two_ranks());
  EXPECT_EQ(healthy.ranks[0].ending, Ending::kFinished);
  EXPECT_NE(shared_->pool().pids()[0], before[0]);
  EXPECT_EQ(shared_->pool().pids()[1], before[1]);
}

TEST_F(ProcessExecutorTest, TheDirectoryIsPrivate) {
  run_case(two_ranks());
  struct stat status {};
  ASSERT_EQ(::stat(shared_->pool().directory().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0700U);
  EXPECT_EQ(status.st_uid, ::getuid());
}

TEST(ProcessExecutorFaultTest, ASignalIsACrashWithItsRankAndStep) {
  const harness::Run run = run_planted("abort", kNever_s);
  EXPECT_EQ(run.ranks[1].ending, Ending::kCrashed);
  EXPECT_EQ(run.ranks[1].rank, 1);
  EXPECT_EQ(run.ranks[1].signal, SIGABRT);
  EXPECT_EQ(run.ranks[1].at_step, 4);
  EXPECT_EQ(run.ranks[0].ending, Ending::kFailed);
  EXPECT_EQ(run.ranks[0].error_kind, "peer_lost");
}

TEST(ProcessExecutorFaultTest, RecordsOfACrashHoldNothingOfTimeOrProcess) {
  ProcessExecutor executor(options(kNever_s));
  const Program program = compile_subject(two_ranks("plant run abort 1"));
  const harness::Run first = executor.execute(program);
  const harness::Run second = executor.execute(program);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(serialize(first.ranks[rank]), serialize(second.ranks[rank]))
        << first.ranks[rank].error_message << "\n"
        << second.ranks[rank].error_message;
  }
  EXPECT_THAT(first.ranks[0].error_message, HasSubstr("lost rank 1: process ended"));
}

TEST(ProcessExecutorFaultTest, AnExitIsACrashWithItsStatus) {
  const harness::Run run = run_planted("exit", kNever_s);
  EXPECT_EQ(run.ranks[1].ending, Ending::kCrashed);
  EXPECT_EQ(run.ranks[1].signal, 0);
  EXPECT_EQ(run.ranks[1].error_kind, "exit");
  EXPECT_THAT(run.ranks[1].error_message, HasSubstr("status 7"));
}

TEST(ProcessExecutorFaultTest, ScriptedCrashesComeFromTheCase) {
  Case value = two_ranks();
  FaultSpec fault;
  fault.kind = "crash";
  fault.ranks = {0};
  fault.steps = {1};
  value.faults = {fault};
  ProcessExecutor executor(options(kNever_s));
  const harness::Run run = executor.execute(compile_subject(value));
  EXPECT_EQ(run.ranks[0].ending, Ending::kCrashed);
  EXPECT_EQ(run.ranks[0].signal, SIGKILL);
  EXPECT_EQ(run.ranks[0].at_step, 1);
  value.faults.clear();
  const harness::Run healthy = executor.execute(compile_subject(value));
  EXPECT_EQ(healthy.ranks[0].ending, Ending::kFinished) << healthy.ranks[0].error_message;
}

TEST(ProcessExecutorFaultTest, ARankThatComputesForEverIsNotWaiting) {
  const harness::Run run = run_planted("hold", kSoon_s);
  expect_waits_for_rank_1(run.ranks[0]);
  EXPECT_EQ(run.ranks[1].ending, Ending::kWaiting);
  EXPECT_FALSE(run.ranks[1].waiting.has_value());
  EXPECT_EQ(run.ranks[1].error_kind, "still_computing");
  EXPECT_EQ(run.ranks[1].at_phase, "planted");
}

TEST(ProcessExecutorFaultTest, AStoppedProcessIsUnresponsiveAndReplaced) {
  ProcessExecutor executor(options(kSoon_s));
  const harness::Run run = executor.execute(compile_subject(two_ranks("plant run stop 1")));
  expect_waits_for_rank_1(run.ranks[0]);
  EXPECT_EQ(run.ranks[1].ending, Ending::kWaiting);
  EXPECT_FALSE(run.ranks[1].waiting.has_value());
  EXPECT_EQ(run.ranks[1].error_kind, "unresponsive");
  EXPECT_EQ(run.ranks[1].at_step, 4);
  const harness::Run healthy = executor.execute(compile_subject(two_ranks()));
  EXPECT_EQ(healthy.ranks[1].ending, Ending::kFinished) << healthy.ranks[1].error_message;
}

TEST(ProcessExecutorFaultTest, AWorkerThatDiesBeforeItMeetsItsPeersEndsTheCase) {
  ProcessExecutor executor(options(kNever_s));
  const harness::Run run = executor.execute(compile_subject(two_ranks("plant connect abort 1")));
  EXPECT_EQ(run.ranks[1].ending, Ending::kCrashed);
  EXPECT_EQ(run.ranks[1].signal, SIGABRT);
  EXPECT_EQ(run.ranks[0].ending, Ending::kWaiting);
  EXPECT_EQ(run.ranks[0].at_phase, "rendezvous");
  EXPECT_EQ(run.ranks[0].error_kind, "cut_short");
}

TEST(ProcessExecutorFaultTest, ADefectInAWorkerIsADefect) {
  ProcessExecutor executor(options(kNever_s));
  const Program broken = compile_subject(two_ranks("plant run defect 1"));
  try {
    executor.execute(broken);
    FAIL() << "the defect was not reported";
  } catch (const InvariantError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1: a defect was planted"));
  }
  EXPECT_THAT(executor.pool().pids(), IsEmpty());
  const harness::Run healthy = executor.execute(compile_subject(two_ranks()));
  EXPECT_EQ(healthy.ranks[1].ending, Ending::kFinished) << healthy.ranks[1].error_message;
}

TEST(ProcessExecutorFaultTest, ABinaryThatIsNoWorkerIsADefect) {
  for (const char* binary : {"/bin/false", "/does/not/exist"}) {
    ProcessExecutor executor({kNever_s, binary});
    EXPECT_THROW(executor.execute(compile_subject(two_ranks())), InvariantError) << binary;
  }
}

TEST(ProcessExecutorFaultTest, HangAfterMustBeATime) {
  EXPECT_THROW(ProcessExecutor({0.0, ""}), UsageError);
  EXPECT_THROW(ProcessExecutor({1e9, ""}), UsageError);
}

}  // namespace
}  // namespace lockstep::harness
