// SPDX-License-Identifier: Apache-2.0
// Distances in ULP and the first difference of two snapshots.
#include "harness/judge/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace lockstep::harness {
namespace {

Snapshot snapshot_of(const std::vector<float>& values, const std::string& name = "w") {
  TensorSlot slot;
  slot.name = name;
  slot.dtype = "Float";
  slot.sizes = {static_cast<std::int64_t>(values.size())};
  slot.num_bytes = static_cast<std::int64_t>(values.size() * sizeof(float));
  Snapshot snapshot;
  snapshot.slots = std::make_shared<std::vector<TensorSlot>>(1, slot);
  snapshot.bytes.resize(values.size() * sizeof(float));
  std::memcpy(snapshot.bytes.data(), values.data(), snapshot.bytes.size());
  return snapshot;
}

TEST(FirstDifferenceTest, SeesThatOneTensorIsSparse) {
  const Snapshot dense = snapshot_of({1.0F, 0.0F});
  Snapshot sparse = dense;
  TensorSlot slot = dense.slots->front();
  slot.sparse = true;
  sparse.slots = std::make_shared<std::vector<TensorSlot>>(1, slot);
  const auto found = first_difference(dense, sparse, Equality::kValues);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->expected, "Float[2]");
  EXPECT_EQ(found->actual, "Float[2] sparse");
}

TEST(FirstDifferenceTest, SeesBothPartsOfComplexNumbers) {
  Snapshot expected = snapshot_of({1.0F, 2.0F, 3.0F, 4.0F});
  TensorSlot slot = expected.slots->front();
  slot.dtype = "ComplexFloat";
  slot.sizes = {2};
  expected.slots = std::make_shared<std::vector<TensorSlot>>(1, slot);
  Snapshot actual = snapshot_of({1.0F, 2.0F, 3.0F, std::nextafter(4.0F, 5.0F)});
  actual.slots = expected.slots;
  const auto found = first_difference(expected, actual, Equality::kBits);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->element, 3);
  EXPECT_EQ(found->ulp, 1);
}

TEST(UlpDistanceTest, CountsRepresentableNumbersBetween) {
  EXPECT_EQ(ulp_distance(1.0F, 1.0F), 0);
  EXPECT_EQ(ulp_distance(1.0F, std::nextafter(1.0F, 2.0F)), 1);
  // 2^23 floats lie in [1, 2).
  EXPECT_EQ(ulp_distance(1.0F, 2.0F), 1 << 23);
  // 2^52 doubles lie in [1, 2).
  EXPECT_EQ(ulp_distance(1.0, 2.0), std::int64_t{1} << 52);
}

TEST(UlpDistanceTest, CrossesZeroWithoutAGap) {
  const float smallest = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(ulp_distance(0.0F, -0.0F), 0);
  EXPECT_EQ(ulp_distance(-smallest, smallest), 2);
}

TEST(UlpDistanceTest, IsSymmetricAtTheEndsOfTheRange) {
  const double largest = std::numeric_limits<double>::max();
  EXPECT_EQ(ulp_distance(-largest, largest), ulp_distance(largest, -largest));
  EXPECT_GT(ulp_distance(-largest, largest), std::int64_t{1} << 62);
}

TEST(UlpDistanceTest, TreatsNanAsAClass) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(ulp_distance(nan, nan), 0);
  EXPECT_EQ(ulp_distance(nan, 1.0F), -1);
}

TEST(FirstDifferenceTest, FindsNothingInEqualBits) {
  EXPECT_FALSE(
      first_difference(snapshot_of({1, 2}), snapshot_of({1, 2}), Equality::kBits).has_value());
}

TEST(FirstDifferenceTest, NamesTensorElementBitsAndCount) {
  const float next = std::nextafter(2.0F, 3.0F);
  const auto found =
      first_difference(snapshot_of({1, 2, 3}), snapshot_of({1, next, 4}), Equality::kBits);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->tensor, "w");
  EXPECT_EQ(found->element, 1);
  EXPECT_EQ(found->ulp, 1);
  EXPECT_EQ(found->num_elements_differ, 2);
  EXPECT_EQ(found->expected_bits, "0x40000000");
  EXPECT_EQ(found->actual_bits, "0x40000001");
}

TEST(FirstDifferenceTest, TellsZerosApartByBitsOnly) {
  EXPECT_TRUE(
      first_difference(snapshot_of({0.0F}), snapshot_of({-0.0F}), Equality::kBits).has_value());
  EXPECT_FALSE(
      first_difference(snapshot_of({0.0F}), snapshot_of({-0.0F}), Equality::kValues).has_value());
}

TEST(FirstDifferenceTest, SeesATensorThatIsThereOnOneSideOnly) {
  Snapshot undefined;
  TensorSlot slot;
  slot.name = "w";
  slot.defined = false;
  undefined.slots = std::make_shared<std::vector<TensorSlot>>(1, slot);
  const auto found = first_difference(snapshot_of({0}), undefined, Equality::kValues);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->actual, "undefined");
  EXPECT_EQ(found->element, -1);
}

TEST(FirstDifferenceTest, SeesAnotherName) {
  EXPECT_TRUE(
      first_difference(snapshot_of({1}, "a"), snapshot_of({1}, "b"), Equality::kBits).has_value());
}

}  // namespace
}  // namespace lockstep::harness
