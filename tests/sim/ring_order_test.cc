// SPDX-License-Identifier: Apache-2.0
// Examples of the ring's order, worked out by hand.
#include "sim/ring_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/sim/ring_emulator.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;

template <typename T>
at::Tensor tensor_of(const std::vector<T>& values) {
  const auto numel = static_cast<std::int64_t>(values.size());
  at::Tensor tensor = at::empty({numel}, c10::CppTypeToScalarType<T>::value);
  if (numel > 0) {
    std::memcpy(tensor.data_ptr(), values.data(), values.size() * sizeof(T));
  }
  return tensor;
}

template <typename T>
std::vector<T> values_of(const at::Tensor& tensor) {
  const T* values = static_cast<const T*>(tensor.data_ptr());
  return std::vector<T>(values, values + tensor.numel());
}

// Every rank holds its entry of `by_rank` in all of `numel` elements; returns rank 0's result.
template <typename T>
std::vector<T> reduce_constant(const std::vector<T>& by_rank, std::size_t numel, ReduceOp op) {
  std::vector<at::Tensor> tensors;
  for (const T value : by_rank) {
    tensors.push_back(tensor_of(std::vector<T>(numel, value)));
  }
  sim::ring_all_reduce(tensors, op);
  for (const at::Tensor& tensor : tensors) {
    EXPECT_EQ(std::memcmp(tensor.data_ptr(), tensors[0].data_ptr(), tensor.nbytes()), 0);
  }
  return values_of<T>(tensors[0]);
}

constexpr float kBig = 16777216.0F;  // 2^24: adding 1 to it changes nothing, to -2^24 it does

TEST(RingOrderTest, AddsThreeRanksInAnotherOrderPerChunk) {
  // Two elements per chunk. chunk 0: (x2 + x1) + x0 = 0 + 1; chunk 1: (x0 + x2) + x1 = 1;
  // chunk 2: (x1 + x0) + x2 = 2^24 - 2^24 = 0, as 2^24 + 1 rounds to 2^24.
  EXPECT_THAT(reduce_constant<float>({1, kBig, -kBig}, 6, ReduceOp::kSum),
              ElementsAre(1, 1, 1, 1, 0, 0));
}

TEST(RingOrderTest, AddsFourRanksInAnotherOrderPerChunk) {
  // chunk 0: ((x3 + x2) + x1) + x0 = 1 + 1; chunk 1: ((x0 + x3) + x2) + x1 = 2;
  // chunk 2: ((x1 + x0) + x3) + x2 = 0 + 1; chunk 3: ((x2 + x1) + x0) + x3 = 0.
  EXPECT_THAT(reduce_constant<float>({1, kBig, 1, -kBig}, 8, ReduceOp::kSum),
              ElementsAre(2, 2, 2, 2, 1, 1, 0, 0));
}

TEST(RingOrderTest, PutsASingleElementIntoChunkZero) {
  // 2 by chunk 0's order, 0 by chunk 3's.
  EXPECT_THAT(reduce_constant<float>({1, kBig, 1, -kBig}, 1, ReduceOp::kSum), ElementsAre(2));
}

TEST(RingOrderTest, CutsChunksAtSegmentBorders) {
  EXPECT_EQ(sim::ring_chunk_numel(4, 1, 4), 2);
  EXPECT_EQ(sim::ring_chunk_numel(4, 8, 8), 2);
  EXPECT_EQ(sim::ring_chunk_numel(4, 9, 8), 4);
  // 10 MiB are 10 segments of 1 MiB, 5 per rank; one element more makes it 12, 6 per rank, each
  // of ceil(2621441 / 12) = 218454 elements.
  EXPECT_EQ(sim::ring_chunk_numel(2, 2621440, 4), 5 * 262144);
  EXPECT_EQ(sim::ring_chunk_numel(2, 2621441, 4), 6 * 218454);
}

TEST(RingOrderTest, FollowsTheRuleBeyondOneSegmentPerChunk) {
  constexpr std::size_t kNumel = 3 * 2 * 262144 + 1;  // just above two 1 MiB segments per rank
  std::vector<std::vector<float>> values(3, std::vector<float>(kNumel));
  std::vector<at::Tensor> tensors;
  for (std::size_t rank = 0; rank < 3; ++rank) {
    for (std::size_t i = 0; i < kNumel; ++i) {
      // 1/3, 1/5, 1/7, ... never add exactly.
      values[rank][i] = 1.0F / static_cast<float>(3 + 2 * ((i + 37 * rank) % 1009));
    }
    tensors.push_back(tensor_of(values[rank]));
  }
  sim::ring_all_reduce(tensors, ReduceOp::kSum);
  const std::vector<float> result = values_of<float>(tensors[1]);
  for (std::size_t i = 0; i < kNumel; i += 997) {
    EXPECT_EQ(result[i], ring_sum(values, static_cast<std::int64_t>(i))) << "element " << i;
  }
}

TEST(RingOrderTest, WrapsIntegerSumsAround) {
  constexpr auto kMax = std::numeric_limits<std::int8_t>::max();
  EXPECT_THAT(reduce_constant<std::int8_t>({kMax, 1, 0}, 1, ReduceOp::kSum), ElementsAre(-128));
  EXPECT_THAT(reduce_constant<std::uint8_t>({255, 2}, 1, ReduceOp::kSum), ElementsAre(1));
  EXPECT_THAT(reduce_constant<std::int64_t>({std::numeric_limits<std::int64_t>::max(), 1}, 1,
                                            ReduceOp::kSum),
              ElementsAre(std::numeric_limits<std::int64_t>::min()));
}

TEST(RingOrderTest, TakesTheMaximumOfEachElement) {
  EXPECT_THAT(reduce_constant<float>({-3, 2, 1}, 2, ReduceOp::kMax), ElementsAre(2, 2));
  EXPECT_THAT(reduce_constant<std::int32_t>({-3, -2, -4, -9}, 1, ReduceOp::kMax), ElementsAre(-2));
}

TEST(RingOrderTest, LeavesASingleRankAlone) {
  EXPECT_THAT(reduce_constant<double>({0.1}, 3, ReduceOp::kSum), ElementsAre(0.1, 0.1, 0.1));
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float float_of(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

TEST(RingOrderTest, KeepsTheNanOfTheRankThatAdds) {
  // Chunk 0 of two ranks: x0 is added to the received x1, so x0's NaN survives, quieted; 200
  // elements take the vector path in chunk 0 and 1, 2 the scalar one.
  for (const std::size_t numel : {2U, 400U}) {
    std::vector<at::Tensor> tensors = {
        tensor_of(std::vector<float>(numel, float_of(0x7f800001))),
        tensor_of(std::vector<float>(numel, float_of(0xffc00002))),
    };
    sim::ring_all_reduce(tensors, ReduceOp::kSum);
    EXPECT_EQ(bits_of(values_of<float>(tensors[0]).front()), 0x7fc00001U);
    if (numel > 4) {
      // Chunk 1: x1 is added to the received x0.
      EXPECT_EQ(bits_of(values_of<float>(tensors[0]).back()), 0xffc00002U);
    }
  }
}

TEST(RingOrderTest, CarriesAReceivedNanOn) {
  std::vector<at::Tensor> tensors = {
      tensor_of(std::vector<float>(2, 1.0F)),
      tensor_of(std::vector<float>(2, float_of(0x7fc0abcd))),
  };
  sim::ring_all_reduce(tensors, ReduceOp::kSum);
  EXPECT_EQ(bits_of(values_of<float>(tensors[0])[0]), 0x7fc0abcdU);
}

TEST(RingOrderTest, MakesNanOfOppositeInfinities) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(reduce_constant<float>({kInf, -kInf}, 1, ReduceOp::kSum)[0]));
}

TEST(RingOrderTest, RoundsSixteenBitTypesAtEachHop) {
  // Half has 11 bits: in chunk 0, (1 + 1) + 2048 = 2050; in chunk 2, (1 + 2048) + 1 rounds to 2048
  // twice. BFloat16 has 8 bits: the same with 256.
  const auto halves = reduce_constant<c10::Half>({2048, 1, 1}, 6, ReduceOp::kSum);
  EXPECT_EQ(halves[0], 2050);
  EXPECT_EQ(halves[4], 2048);
  const auto brains = reduce_constant<c10::BFloat16>({256, 1, 1}, 6, ReduceOp::kSum);
  EXPECT_EQ(brains[0], 258);
  EXPECT_EQ(brains[4], 256);
  EXPECT_EQ(reduce_constant<c10::Half>({-1, -2, -3}, 1, ReduceOp::kMax)[0], -1);
}

TEST(RingOrderTest, LosesNoTermOfAHalfSum) {
  // A pair of which Gloo's own float16 addition keeps only the first.
  EXPECT_EQ(reduce_constant<c10::Half>({1, 15360}, 1, ReduceOp::kSum)[0],
            static_cast<c10::Half>(15361.0F));
}

TEST(RingOrderTest, HasNoSumsOfOtherTypes) {
  for (const at::ScalarType dtype : {at::kBool, at::kShort, at::kComplexFloat}) {
    EXPECT_FALSE(sim::is_ring_dtype(dtype)) << dtype;
  }
}

}  // namespace
}  // namespace lockstep::test
