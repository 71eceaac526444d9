// SPDX-License-Identifier: Apache-2.0
// Bucket plans against hand-computed ones.
#include "core/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "core/error.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;

// Tensors of the given numbers of bytes; floats unless said otherwise.
std::vector<at::Tensor> floats(const std::vector<std::int64_t>& bytes) {
  std::vector<at::Tensor> tensors;
  for (const std::int64_t size : bytes) {
    tensors.push_back(at::empty({size / 4}, at::kFloat));
  }
  return tensors;
}

std::vector<at::Tensor> alternating(std::int64_t pairs, std::int64_t bytes) {
  std::vector<at::Tensor> tensors;
  for (std::int64_t i = 0; i < pairs; ++i) {
    tensors.push_back(at::empty({bytes / 4}, at::kFloat));
    tensors.push_back(at::empty({bytes / 8}, at::kDouble));
  }
  return tensors;
}

TEST(BucketPlanTest, ClosesABucketOnceItsCapIsReachedOrExceeded) {
  // 4+4 = 8 reaches the cap exactly; 4+16 exceeds it; 4 is left over.
  EXPECT_THAT(assign_buckets(floats({4, 4, 4, 16, 4}), {8}),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
}

// Caps 4, then 8. Without 0 and 2: 1 fills the first bucket, 3 and 4 the second.
TEST(BucketPlanTest, ATensorWithSparseGradientsIsABucketAndCountsForNoCap) {
  const SparseFlags sparse = {true, false, true, false, false};
  EXPECT_THAT(assign_buckets(floats({4, 4, 4, 4, 4}), {4, 8}, sparse),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3, 4)));
  EXPECT_THAT(assign_buckets_in_order(floats({4, 4, 4, 4, 4}), {4, 8}, {3, 2, 4, 0, 1}, sparse),
              ElementsAre(ElementsAre(3), ElementsAre(2), ElementsAre(0), ElementsAre(4, 1)));
  EXPECT_THROW(assign_buckets(floats({4}), {4}, {true, false}), UsageError);
}

TEST(BucketPlanTest, AHugeTensorIsGluedToTheSmallOnesBeforeIt) {
  EXPECT_THAT(assign_buckets(floats({4, 4, 400, 4}), {100}),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3)));
}

TEST(BucketPlanTest, EachDtypeHasItsOwnBucketSortedBySmallestIndex) {
  EXPECT_THAT(assign_buckets(alternating(3, 80), {200}),
              ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3, 5)));
}

TEST(BucketPlanTest, EachDtypeWalksTheCapsByItselfAndTheLastCapRepeats) {
  // Caps 40 then 80, tensors of 40 bytes: one tensor, then two, then two, per dtype.
  EXPECT_THAT(assign_buckets(alternating(5, 40), {40, 80}),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2, 4), ElementsAre(3, 5),
                          ElementsAre(6, 8), ElementsAre(7, 9)));
}

TEST(BucketPlanTest, ATensorWithoutElementsCountsNoBytes) {
  EXPECT_THAT(assign_buckets(floats({0, 4, 0, 4}), {4}),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

TEST(BucketPlanTest, NoTensorsGiveNoBuckets) { EXPECT_TRUE(assign_buckets({}, {4}).empty()); }

TEST(BucketPlanTest, InReadyOrderBucketsComeInOrderOfClosing) {
  // Order 3,1,0,2 with caps 4 then 8: {3}, {1,0}, and 2 left over.
  EXPECT_THAT(assign_buckets_in_order(floats({4, 4, 4, 4}), {4, 8}, {3, 1, 0, 2}),
              ElementsAre(ElementsAre(3), ElementsAre(1, 0), ElementsAre(2)));
}

TEST(BucketPlanTest, LeftoversComeLastInOrderOfTheirLastTensor) {
  // Doubles (odd) get their last tensor before floats (even) do.
  EXPECT_THAT(assign_buckets_in_order(alternating(2, 8), {1000}, {3, 2, 1, 0}),
              ElementsAre(ElementsAre(3, 1), ElementsAre(2, 0)));
}

TEST(BucketPlanTest, TheInitialPlanHasOneBucketPerDtypeLastFirst) {
  const BucketCaps caps{8, 8};
  EXPECT_THAT(initial_plan(alternating(3, 8), caps, false),
              ElementsAre(ElementsAre(1, 3, 5), ElementsAre(0, 2, 4)));
}

TEST(BucketPlanTest, TheInitialPlanWithSmallBucketsReducesTheFirstDeclaredLast) {
  // Caps 4 then 8: {0}, {1,2}, {3}; reversed as a list, but not inside.
  const BucketCaps caps{4, 8};
  EXPECT_THAT(initial_plan(floats({4, 4, 4, 4}), caps, true),
              ElementsAre(ElementsAre(3), ElementsAre(1, 2), ElementsAre(0)));
}

TEST(BucketPlanTest, TheFirstCapNeverExceedsTheOther) {
  const BucketCaps caps{1 << 20, 4};
  EXPECT_THAT(rebuilt_plan(floats({4, 4, 4}), caps, {2, 1, 0}),
              ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(0)));
}

TEST(BucketPlanTest, RejectsMissingOrNonPositiveCaps) {
  EXPECT_THROW(assign_buckets(floats({4}), {}), UsageError);
  EXPECT_THROW(assign_buckets(floats({4}), {4, 0}), UsageError);
}

TEST(BucketPlanTest, RejectsSparseTensors) {
  EXPECT_THROW(assign_buckets({at::eye(2).to_sparse()}, {4}), UsageError);
}

TEST(BucketPlanTest, APartitionHasEveryIndexOnceAndNoEmptyBucket) {
  EXPECT_TRUE(is_partition({{1}, {0, 2}}, 3));
  EXPECT_FALSE(is_partition({{1}, {0}}, 3));
  EXPECT_FALSE(is_partition({{1}, {0, 2, 1}}, 3));
  EXPECT_FALSE(is_partition({{1}, {0, 2}, {}}, 3));
  EXPECT_FALSE(is_partition({{1}, {0, 3}}, 3));
}

}  // namespace
}  // namespace lockstep::test
