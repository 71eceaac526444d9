// SPDX-License-Identifier: Apache-2.0
// Who is named when a collective fails, for everything a rank may see.
#include "core/gloo_blame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;
using FailureKind = CommFailure::Kind;
using FarewellKind = Farewell::Kind;

/// Rank 0 of four, in a collective that nobody but rank 2 is late for.
FailureEvidence evidence() {
  FailureEvidence result;
  result.where = "rank 0: barrier";
  result.reason = "interrupted";
  result.timed_out = true;
  result.timeout = std::chrono::milliseconds(100);
  result.farewells.resize(4);
  result.missing = {2};
  return result;
}

TEST(GlooBlameTest, AWaitThatLastsTooLongNamesWhoIsLateAndTellsThePeers) {
  const Blame blame = blame_for(evidence());
  EXPECT_EQ(blame.failure.kind, FailureKind::kTimedOut);
  EXPECT_EQ(blame.failure.message,
            "rank 0: barrier: timed out after 100 ms: not entered by rank 2");
  EXPECT_EQ(blame.farewell.kind, FarewellKind::kGaveUp);
}

TEST(GlooBlameTest, ABrokenConnectionNamesThePeerAndTellsTheOthers) {
  FailureEvidence seen = evidence();
  seen.broken = {{2, "Connection reset by peer"}};
  const Blame blame = blame_for(seen);
  EXPECT_EQ(blame.failure.kind, FailureKind::kPeerLost);
  EXPECT_EQ(blame.failure.message,
            "rank 0: barrier: lost rank 2 (Connection reset by peer; not entered by rank 2)");
  EXPECT_EQ(blame.farewell.kind, FarewellKind::kLost);
  EXPECT_EQ(blame.farewell.lost_rank, 2);
}

TEST(GlooBlameTest, APeerThatLostAnotherIsBelieved) {
  FailureEvidence seen = evidence();
  seen.timed_out = false;
  seen.broken = {{1, "Connection closed by peer"}};
  seen.farewells[1] = {FarewellKind::kLost, 2};
  EXPECT_THAT(blame_for(seen).failure.message, HasSubstr("lost rank 2 (as rank 1 says"));
}

TEST(GlooBlameTest, APeerThatGaveUpIsNotTheOneThatIsNamed) {
  FailureEvidence seen = evidence();
  seen.timed_out = false;
  seen.broken = {{1, "Connection closed by peer"}};
  seen.farewells[1] = {FarewellKind::kGaveUp, -1};
  seen.missing = {1, 2};
  const Blame blame = blame_for(seen);
  EXPECT_EQ(blame.failure.kind, FailureKind::kTimedOut);
  EXPECT_THAT(blame.failure.message, HasSubstr("not entered by rank 2"));
}

TEST(GlooBlameTest, ARankThatComesWhenAllHaveGivenUpIsTold) {
  FailureEvidence seen = evidence();
  seen.missing = {1, 2, 3};
  for (const std::int64_t peer : {1, 2, 3}) {
    seen.farewells[static_cast<std::size_t>(peer)] = {FarewellKind::kGaveUp, -1};
    seen.broken.emplace_back(peer, "Connection closed by peer");
  }
  const Blame blame = blame_for(seen);
  EXPECT_EQ(blame.failure.kind, FailureKind::kPeerLost);
  EXPECT_EQ(blame.failure.message, "rank 0: barrier: rank 1, 2, 3 had given up waiting");
  EXPECT_EQ(blame.farewell.kind, FarewellKind::kNone);
  seen.farewells[3] = {FarewellKind::kLost, 0};
  EXPECT_EQ(blame_for(seen).failure.message, blame.failure.message) << "nobody loses itself";
}

TEST(GlooBlameTest, APeerThatWasDoneAndIsNeededAfterAllIsLost) {
  FailureEvidence seen = evidence();
  seen.farewells[2] = {FarewellKind::kDone, -1};
  seen.broken = {{2, "Connection closed by peer"}};
  EXPECT_THAT(blame_for(seen).failure.message, HasSubstr("lost rank 2"));
}

TEST(GlooBlameTest, ACommunicatorThatIsDestroyedBlamesNobodyToThePeers) {
  FailureEvidence seen = evidence();
  seen.timed_out = false;
  seen.aborted = true;
  EXPECT_EQ(blame_for(seen).failure.kind, FailureKind::kOther);
  EXPECT_THAT(blame_for(seen).failure.message, HasSubstr("is being destroyed"));
  seen.broken = {{2, "Connection reset by peer"}};
  EXPECT_EQ(blame_for(seen).farewell.kind, FarewellKind::kNone);
}

TEST(GlooBlameTest, FarewellsComeBackAsTheyWereSaid) {
  for (const Farewell& farewell :
       {Farewell{}, Farewell{FarewellKind::kDone, -1}, Farewell{FarewellKind::kGaveUp, -1},
        Farewell{FarewellKind::kLost, 0}, Farewell{FarewellKind::kLost, 252}}) {
    const Farewell again = decode_farewell(encode_farewell(farewell));
    EXPECT_EQ(again.kind, farewell.kind);
    EXPECT_EQ(again.lost_rank, farewell.lost_rank);
  }
  EXPECT_EQ(decode_farewell(encode_farewell({FarewellKind::kLost, 253})).kind,
            FarewellKind::kGaveUp);
}

}  // namespace
}  // namespace lockstep::test
