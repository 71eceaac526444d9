// SPDX-License-Identifier: Apache-2.0
// One hop of the ring, element by element.
#include "core/ring_kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace lockstep::test {
namespace {

/// Applies the kernel to raw bit patterns. 100 copies, so that whole blocks and a rest are met.
template <typename Bits>
std::vector<Bits> hop(at::ScalarType dtype, ReduceOp op, Bits own, Bits received) {
  const std::vector<Bits> left(100, own), right(100, received);
  std::vector<Bits> result = left;
  find_ring_kernel(dtype, op)(result.data(), result.data(), right.data(), result.size());
  return result;
}

template <typename Bits>
void expect_sum(at::ScalarType dtype, Bits own, Bits received, Bits expected) {
  EXPECT_EQ(hop(dtype, ReduceOp::kSum, own, received), std::vector<Bits>(100, expected))
      << c10::toString(dtype) << std::hex << " " << +own << " + " << +received;
}

TEST(RingKernelsTest, OwnNanComesFirstAndIsQuieted) {
  // float: 0x7f800000 is infinity, bit 22 marks a quiet NaN.
  expect_sum<std::uint32_t>(at::kFloat, 0x7f800001, 0xffc00002, 0x7fc00001);
  expect_sum<std::uint32_t>(at::kFloat, 0xff800003, 0x3f800000, 0xffc00003);
  expect_sum<std::uint32_t>(at::kFloat, 0x3f800000, 0x7f800004, 0x7fc00004);
  expect_sum<std::uint64_t>(at::kDouble, 0x7ff0000000000001, 0xfff8000000000002,
                            0x7ff8000000000001);
  expect_sum<std::uint16_t>(at::kHalf, 0x7c01, 0xfe02, 0x7e01);
  expect_sum<std::uint16_t>(at::kBFloat16, 0x3f80, 0x7f81, 0x7fc1);
}

TEST(RingKernelsTest, SignedZerosAndSubnormalsAreExact) {
  expect_sum<std::uint32_t>(at::kFloat, 0x80000000, 0x80000000, 0x80000000);  // -0 + -0
  expect_sum<std::uint32_t>(at::kFloat, 0x00000000, 0x80000000, 0x00000000);  // +0 + -0
  expect_sum<std::uint32_t>(at::kFloat, 0x00000001, 0x00000001, 0x00000002);  // 2 * 2^-149
}

TEST(RingKernelsTest, SixteenBitSumsRoundToNearestEven) {
  // Half: 1 = 0x3c00 with steps of 2^-10; 2^-11 = 0x1000 is half a step, so 1 stays and
  // 1 + 2^-10 = 0x3c01 goes up to the even 0x3c02.
  expect_sum<std::uint16_t>(at::kHalf, 0x3c00, 0x1000, 0x3c00);
  expect_sum<std::uint16_t>(at::kHalf, 0x3c01, 0x1000, 0x3c02);
  // BFloat16: 1 = 0x3f80 with steps of 2^-7; 2^-8 = 0x3b80 is half a step.
  expect_sum<std::uint16_t>(at::kBFloat16, 0x3f80, 0x3b80, 0x3f80);
  expect_sum<std::uint16_t>(at::kBFloat16, 0x3f81, 0x3b80, 0x3f82);
  // Pairs that Gloo's own float16 gets wrong: 1 + 15360 and 5 * 2^-24 + 5 round to the larger.
  expect_sum<std::uint16_t>(at::kHalf, 0x3c00, 0x7380, 0x7380);
  expect_sum<std::uint16_t>(at::kHalf, 0x0005, 0x4500, 0x4500);
}

TEST(RingKernelsTest, IntegersWrapAround) {
  expect_sum<std::uint32_t>(at::kInt, 0x7fffffff, 1, 0x80000000);
  expect_sum<std::uint64_t>(at::kLong, 0x7fffffffffffffff, 1, 0x8000000000000000);
  expect_sum<std::uint8_t>(at::kChar, 127, 1, 128);
  expect_sum<std::uint8_t>(at::kByte, 255, 2, 1);
}

TEST(RingKernelsTest, AMaximumKeepsTheOwnValueUnlessItIsLess) {
  const auto max = [](std::uint32_t own, std::uint32_t received) {
    return hop(at::kFloat, ReduceOp::kMax, own, received).front();
  };
  EXPECT_EQ(max(0x3f800000, 0x40000000), 0x40000000U);                             // 1, 2
  EXPECT_EQ(max(0x80000000, 0x00000000), 0x80000000U);                             // -0, +0: a tie
  EXPECT_EQ(max(0x7fc00001, 0x3f800000), 0x7fc00001U);                             // NaN, 1
  EXPECT_EQ(max(0x3f800000, 0x7fc00001), 0x3f800000U);                             // 1, NaN
  EXPECT_EQ(hop<std::uint8_t>(at::kChar, ReduceOp::kMax, 0xff, 1).front(), 1);     // -1, 1
  EXPECT_EQ(hop<std::uint8_t>(at::kByte, ReduceOp::kMax, 0xff, 1).front(), 0xff);  // 255, 1
}

TEST(RingKernelsTest, ThereIsNoneForOtherTypes) {
  for (const auto dtype : {at::kBool, at::kShort, at::kComplexFloat}) {
    EXPECT_EQ(find_ring_kernel(dtype, ReduceOp::kSum), nullptr);
  }
}

}  // namespace
}  // namespace lockstep::test
