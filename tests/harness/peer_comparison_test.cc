// SPDX-License-Identifier: Apache-2.0
// Two runs side by side: what is the same, and that every kind of difference is seen.
#include "harness/judge/peer_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/program.h"
#include "harness/scenario.h"
#include "harness/sync/libtorch_error.h"

namespace lockstep::harness {
namespace {

// Inside a test, `Run` is GoogleTest's.
using TrainingRun = Run;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PeerComparisonTest : public ::testing::Test {
 protected:
  PeerComparisonTest() : theirs_(ours_) {}

  std::vector<std::string> compared() const { return differences(ours_, theirs_, "torch"); }

  const TrainingRun ours_ = make_sim_executor()->execute(compile_subject(Case()));
  TrainingRun theirs_;
};

TEST_F(PeerComparisonTest, ARunIsLikeItself) { EXPECT_THAT(compared(), IsEmpty()); }

TEST_F(PeerComparisonTest, SeesOneBit) {
  theirs_.ranks[1].steps[1].gradients.bytes[0] ^= 1;
  EXPECT_THAT(compared(),
              ElementsAre(HasSubstr("rank 1, step 1, gradient layer0.weight[0]: ddp has ")));
}

TEST_F(PeerComparisonTest, SeesAnotherLoss) {
  theirs_.ranks[0].steps[2].losses[0] += 1.0;
  EXPECT_THAT(compared(), ElementsAre(HasSubstr("rank 0, step 2: ddp has losses ")));
}

TEST_F(PeerComparisonTest, SeesAnotherEndAtTheSamePoint) {
  theirs_.ranks[1].ending = Ending::kFailed;
  theirs_.ranks[1].error_kind = "ready_twice";
  theirs_.ranks[1].at_phase = "backward";
  theirs_.ranks[1].at_step = 2;
  EXPECT_THAT(compared(),
              ElementsAre("rank 1: ddp finished with 3 steps, torch fails with ready_twice in "
                          "backward of step 2"));
}

TEST_F(PeerComparisonTest, SeesACollectiveMoreLessAndOther) {
  std::vector<CollectiveRecord>& issued = theirs_.ranks[0].collectives;
  issued.push_back({"barrier", "barrier", 2, 0, ""});
  EXPECT_THAT(compared(), ElementsAre(AllOf(HasSubstr("ddp issues none"), HasSubstr("barrier"))));
  issued.resize(issued.size() - 2);
  EXPECT_THAT(compared(), ElementsAre(HasSubstr("torch none")));
  issued = ours_.ranks[0].collectives;
  issued.back().numel += 1;
  EXPECT_EQ(compared().size(), 1U);
  issued = ours_.ranks[0].collectives;
  issued.back().dtype = "Double";
  EXPECT_EQ(compared().size(), 1U);
}

TEST_F(PeerComparisonTest, LeavesOutHowTheModelIsVerified) {
  std::vector<CollectiveRecord>& issued = theirs_.ranks[0].collectives;
  ASSERT_EQ(issued[1].site, "param_shapes");
  issued[1].collective = "broadcast";
  EXPECT_THAT(compared(), IsEmpty());
}

TEST(PeerComplaintsTest, DifferencesNeedAReasonAndReasonsADifference) {
  EXPECT_THAT(complaints_about(PeerComparison{"torch", {}, ""}), IsEmpty());
  EXPECT_THAT(complaints_about(PeerComparison{"torch", {"a", "b"}, "known"}), IsEmpty());
  EXPECT_THAT(complaints_about(PeerComparison{"torch", {"a", "b"}, ""}), ElementsAre("a", "b"));
  EXPECT_THAT(complaints_about(PeerComparison{"torch", {}, "known"}),
              ElementsAre(HasSubstr("torch did the same, though [expect.torch]")));
}

TEST(LibtorchErrorTest, KnowsTheKindsByPiecesOfTheirMessages) {
  const std::string unfinished =
      "Expected to have finished reduction in the prior iteration before starting a new one. ";
  EXPECT_EQ(libtorch_error_kind(unfinished + "more"), "reduction_unfinished");
  EXPECT_EQ(libtorch_error_kind(unfinished + "your training graph has changed in this iteration"),
            "static_graph_changed");
  EXPECT_EQ(libtorch_error_kind("Expected to mark a variable ready only once. "), "ready_twice");
  EXPECT_EQ(libtorch_error_kind("DDP expects same model across all ranks, but"), "model_mismatch");
  EXPECT_EQ(libtorch_error_kind("sizes of tensors must match"), "libtorch");
}

}  // namespace
}  // namespace lockstep::harness
