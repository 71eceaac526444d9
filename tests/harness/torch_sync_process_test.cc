// SPDX-License-Identifier: Apache-2.0
// PyTorch's reducer in real processes: over our Gloo communicator, and over PyTorch's own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/execute/process_executor.h"
#include "harness/judge/peer_comparison.h"

namespace lockstep::harness {
namespace {

// Inside a test, `Run` is GoogleTest's.
using TrainingRun = Run;

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class TorchSyncProcessTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::unique_ptr<Executor> processes(double hang_after_seconds) {
    ProcessExecutorOptions options;
    options.hang_after_seconds = hang_after_seconds;
    options.binary = LOCKSTEP_BINARY;
    options.transport = GetParam();
    return make_process_executor(options);
  }
};

// Three ranks round and add in an order that matters, and so does who divides.
TEST_P(TorchSyncProcessTest, DoesWhatOursDoesInTheSimulator) {
  Case value;
  value.world.ranks = 3;
  value.ddp.bucket_cap_bytes = 64;
  const TrainingRun ours = make_sim_executor()->execute(compile_subject(value));
  value.ddp.sync = "torch";
  const auto executor = processes(3'600.0);
  EXPECT_THAT(differences(ours, executor->execute(compile_subject(value)), "torch"), IsEmpty());
}

TEST_P(TorchSyncProcessTest, ARankThatLeavesIsWaitedForInItsNextBucket) {
  Case value;
  value.ddp.sync = "torch";
  AtSpec leave;
  leave.ranks = {1};
  leave.steps = {1};
  leave.leave = true;
  value.at = {leave};
  const TrainingRun run = processes(0.5)->execute(compile_subject(value));
  EXPECT_EQ(run.ranks[1].ending, Ending::kLeft);
  ASSERT_TRUE(run.ranks[0].waiting.has_value());
  // The buckets are rebuilt in step 1, before its forward (D3).
  EXPECT_EQ(run.ranks[0].waiting->site, "rebuild_order");
  EXPECT_THAT(run.ranks[0].waiting->waiting_for, ElementsAre(1));
}

INSTANTIATE_TEST_SUITE_P(Transports, TorchSyncProcessTest, ::testing::Values("gloo", "c10d_gloo"));

}  // namespace
}  // namespace lockstep::harness
