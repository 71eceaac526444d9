// SPDX-License-Identifier: Apache-2.0
// Pairing and comparison of collectives, without any thread.
#include "sim/collective_matcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

namespace lockstep::test {
namespace {

using sim::CollectiveInfo;
using sim::CollectiveMatcher;
using sim::Contribution;
using ::testing::ElementsAre;
using Outcome = CollectiveMatcher::Outcome;

CollectiveInfo bucket_sum() {
  CollectiveInfo info;
  info.kind = CollectiveKind::kAllReduce;
  info.tag = {CallSite::kBucket, 2, 0};
  info.numel = 42;
  info.dtype = "Float";
  return info;
}

Outcome post(CollectiveMatcher& matcher, std::int64_t rank, CollectiveInfo info = bucket_sum()) {
  info.seq = matcher.next_seq(rank);
  return matcher.post(rank, {std::move(info), {}, {}});
}

TEST(CollectiveMatcherTest, CompletesACollectiveWithItsLastRank) {
  CollectiveMatcher matcher(3, true);
  EXPECT_EQ(post(matcher, 1), Outcome::kPending);
  EXPECT_EQ(post(matcher, 0), Outcome::kPending);
  EXPECT_THAT(matcher.missing(0), ElementsAre(2));
  EXPECT_EQ(post(matcher, 2), Outcome::kComplete);
  EXPECT_EQ(matcher.take_complete().size(), 3U);
  EXPECT_TRUE(matcher.is_complete(0));
  EXPECT_FALSE(matcher.is_complete(1));
}

TEST(CollectiveMatcherTest, PairsByPositionWhenARankRunsAhead) {
  CollectiveMatcher matcher(2, true);
  CollectiveInfo second = bucket_sum();
  second.tag.bucket = 1;
  post(matcher, 0);
  post(matcher, 0, second);
  EXPECT_EQ(matcher.pending(0, 1).tag.bucket, 1);
  EXPECT_THAT(matcher.missing(1), ElementsAre(1));
  EXPECT_EQ(post(matcher, 1), Outcome::kComplete);
  EXPECT_EQ(matcher.take_complete()[0].info.tag.bucket, 0);
  EXPECT_EQ(post(matcher, 1, second), Outcome::kComplete);
  EXPECT_EQ(matcher.take_complete()[0].info.tag.bucket, 1);
}

TEST(CollectiveMatcherTest, NamesBothRanksInRankOrderWhoeverCameFirst) {
  CollectiveMatcher matcher(2, true);
  CollectiveInfo other = bucket_sum();
  other.kind = CollectiveKind::kBroadcast;
  other.tag = {CallSite::kBuffers, 2, -1};
  other.root = 0;
  post(matcher, 1, other);
  EXPECT_EQ(post(matcher, 0), Outcome::kFailed);
  EXPECT_EQ(matcher.mismatch_text(),
            "collective 0: rank 0 issued all_reduce (bucket 0, step 2, 42 x Float) but rank 1 "
            "issued broadcast (buffers, step 2, 42 x Float, from rank 0)");
}

TEST(CollectiveMatcherTest, FailsAllLaterCollectivesButNotEarlierOnes) {
  CollectiveMatcher matcher(3, true);
  CollectiveInfo other = bucket_sum();
  other.numel = 43;
  for (const std::int64_t rank : {0, 1}) {
    post(matcher, rank);
  }
  post(matcher, 0);
  EXPECT_EQ(post(matcher, 1, other), Outcome::kFailed);
  EXPECT_EQ(post(matcher, 1), Outcome::kFailed);
  EXPECT_FALSE(matcher.has_failed(0));
  EXPECT_TRUE(matcher.has_failed(1));
  EXPECT_TRUE(matcher.has_failed(2));
  EXPECT_EQ(post(matcher, 2), Outcome::kComplete);
  matcher.take_complete();
  EXPECT_EQ(post(matcher, 2), Outcome::kFailed);
  EXPECT_EQ(matcher.mismatch()->second_rank, 1);
}

struct Difference {
  std::string name;
  std::function<void(CollectiveInfo&)> apply;
  bool in_tag_only;
};

class CollectiveDifferenceTest : public ::testing::TestWithParam<Difference> {};

TEST_P(CollectiveDifferenceTest, IsSeenWithTagsChecked) {
  CollectiveMatcher matcher(2, true);
  CollectiveInfo other = bucket_sum();
  GetParam().apply(other);
  post(matcher, 0);
  EXPECT_EQ(post(matcher, 1, other), Outcome::kFailed);
}

TEST_P(CollectiveDifferenceTest, IsSeenWithoutTagsUnlessItIsInTheTag) {
  CollectiveMatcher matcher(2, false);
  CollectiveInfo other = bucket_sum();
  GetParam().apply(other);
  post(matcher, 0);
  EXPECT_EQ(post(matcher, 1, other),
            GetParam().in_tag_only ? Outcome::kComplete : Outcome::kFailed);
}

INSTANTIATE_TEST_SUITE_P(
    All, CollectiveDifferenceTest,
    ::testing::Values(
        Difference{"Kind", [](auto& other) { other.kind = CollectiveKind::kBroadcast; }, false},
        Difference{"Op", [](auto& other) { other.op = ReduceOp::kMax; }, false},
        Difference{"Numel", [](auto& other) { other.numel = 41; }, false},
        Difference{"Dtype", [](auto& other) { other.dtype = "Double"; }, false},
        Difference{"Root", [](auto& other) { other.root = 1; }, false},
        Difference{"Site", [](auto& other) { other.tag.site = CallSite::kUsedMap; }, true},
        Difference{"Step", [](auto& other) { other.tag.step = 3; }, true},
        Difference{"Bucket", [](auto& other) { other.tag.bucket = 1; }, true}),
    [](const auto& instance) { return instance.param.name; });

TEST(CollectiveInfoTest, LeavesOutWhatDoesNotApply) {
  CollectiveInfo barrier;
  EXPECT_EQ(sim::to_string(barrier), "barrier (script)");
  CollectiveInfo used = bucket_sum();
  used.op = ReduceOp::kMax;
  used.tag = {CallSite::kUsedMap, -1, -1};
  EXPECT_EQ(sim::to_string(used), "all_reduce max (used_map, 42 x Float)");
}

}  // namespace
}  // namespace lockstep::test
