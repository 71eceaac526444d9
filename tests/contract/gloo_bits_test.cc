// SPDX-License-Identifier: Apache-2.0
// The bits that Gloo's all_reduce leaves are those of the ring rule that the simulator follows.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/gloo_communicator.h"
#include "sim/ring_order.h"
#include "tests/contract/gloo_world.h"

namespace lockstep::test {
namespace {

/// A splitmix64 sequence; every value of it depends on the seed alone.
class Bits {
 public:
  explicit Bits(std::uint64_t seed) : state_(seed) {}
  std::uint64_t operator()() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

 private:
  std::uint64_t state_;
};

/// Signed values of magnitude [1, 2) * 2^[-12, 12], so that the order of additions shows.
template <typename T>
at::Tensor wide_values(std::int64_t numel, std::uint64_t seed, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({numel}, dtype);
  T* values = tensor.data_ptr<T>();
  Bits bits(seed);
  for (std::int64_t i = 0; i < numel; ++i) {
    const std::uint64_t word = bits();
    const double mantissa = 1.0 + static_cast<double>(word >> 12) * 0x1p-52;
    const int exponent = static_cast<int>(word % 25) - 12;
    values[i] = static_cast<T>(std::ldexp((word & 2048U) != 0 ? -mantissa : mantissa, exponent));
  }
  return tensor;
}

/// Any bit pattern at all.
at::Tensor raw_values(std::int64_t numel, std::uint64_t seed, at::ScalarType dtype) {
  at::Tensor tensor = at::empty({numel}, dtype);
  auto* bytes = static_cast<std::uint8_t*>(tensor.data_ptr());
  Bits bits(seed);
  for (std::size_t i = 0; i < tensor.nbytes(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(bits());
  }
  return tensor;
}

std::int64_t count_differing_bytes(const at::Tensor& a, const at::Tensor& b) {
  const auto* left = static_cast<const std::uint8_t*>(a.data_ptr());
  const auto* right = static_cast<const std::uint8_t*>(b.data_ptr());
  std::int64_t count = 0;
  for (std::size_t i = 0; i < a.nbytes(); ++i) {
    count += left[i] != right[i] ? 1 : 0;
  }
  return count;
}

std::vector<at::Tensor> clones(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.clone());
  }
  return copies;
}

std::vector<at::Tensor> reduce_over_gloo(GlooWorld& world, const std::vector<at::Tensor>& inputs,
                                         ReduceOp op) {
  std::vector<at::Tensor> outputs = clones(inputs);
  world.run([&](GlooCommunicator& communicator) {
    communicator.all_reduce(outputs[static_cast<std::size_t>(communicator.rank())], op, {})->wait();
  });
  return outputs;
}

/// Sizes at which the number of chunks, or of elements in the last one, changes.
std::vector<std::int64_t> sizes_around_chunks(std::int64_t world_size) {
  std::vector<std::int64_t> sizes = {0, 1, 2, 3, 17, 1000, 4099};
  for (const std::int64_t edge : {2 * world_size, 4 * world_size, 6 * world_size}) {
    sizes.insert(sizes.end(), {edge - 1, edge, edge + 1});
  }
  return sizes;
}

class GlooBits : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void expect_ring_bits(const std::vector<at::Tensor>& inputs, ReduceOp op) {
    const auto outputs = reduce_over_gloo(world_, inputs, op);
    auto expected = clones(inputs);
    sim::ring_all_reduce(expected, op);
    for (std::size_t rank = 0; rank < outputs.size(); ++rank) {
      EXPECT_EQ(count_differing_bytes(outputs[rank], expected[rank]), 0)
          << "rank " << rank << " of " << outputs.size() << ", " << inputs[0].numel() << " "
          << c10::toString(inputs[0].scalar_type()) << ", " << to_string(op);
    }
  }

  template <typename Make>
  std::vector<at::Tensor> per_rank(const Make& make) {
    std::vector<at::Tensor> tensors;
    for (std::int64_t rank = 0; rank < world_.world_size(); ++rank) {
      tensors.push_back(make(static_cast<std::uint64_t>(rank)));
    }
    return tensors;
  }

  GlooWorld world_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(WorldSize, GlooBits, ::testing::Values(2, 3, 4, 5));

TEST_P(GlooBits, FloatSumsAreAddedInRingOrder) {
  for (const std::int64_t numel : sizes_around_chunks(GetParam())) {
    expect_ring_bits(per_rank([&](std::uint64_t rank) {
                       return wide_values<float>(numel, 100 + rank, at::kFloat);
                     }),
                     ReduceOp::kSum);
  }
}

TEST_P(GlooBits, DoubleSumsAreAddedInRingOrder) {
  for (const std::int64_t numel : sizes_around_chunks(GetParam())) {
    expect_ring_bits(per_rank([&](std::uint64_t rank) {
                       return wide_values<double>(numel, 200 + rank, at::kDouble);
                     }),
                     ReduceOp::kSum);
  }
}

TEST_P(GlooBits, SegmentsOfOneMebibyteMoveTheChunkBorders) {
  // 2 W MiB is the most that two segments per rank can hold; one element more adds a segment.
  const std::int64_t edge = 2 * GetParam() * (std::int64_t{1} << 20) / 4;
  for (const std::int64_t numel : {edge, edge + 1}) {
    expect_ring_bits(per_rank([&](std::uint64_t rank) {
                       return wide_values<float>(numel, 300 + rank, at::kFloat);
                     }),
                     ReduceOp::kSum);
  }
}

// NaNs, infinities, subnormals and negative zeros included.
TEST_P(GlooBits, AnyBitPatternIsSummedAsTheRuleSays) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kInt, at::kLong, at::kChar, at::kByte}) {
    expect_ring_bits(
        per_rank([&](std::uint64_t rank) { return raw_values(4099, 400 + rank, dtype); }),
        ReduceOp::kSum);
  }
}

TEST_P(GlooBits, FloatNansKeepTheLocalPayload) {
  expect_ring_bits(per_rank([&](std::uint64_t rank) {
                     at::Tensor tensor = raw_values(4099, 500 + rank, at::kFloat);
                     auto* words = static_cast<std::uint32_t*>(tensor.data_ptr());
                     for (std::int64_t i = 0; i < tensor.numel(); i += 2) {
                       words[i] |= 0x7f800000U;
                     }
                     return tensor;
                   }),
                   ReduceOp::kSum);
}

TEST_P(GlooBits, MaximaAreTakenInRingOrder) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kInt, at::kLong, at::kChar, at::kByte}) {
    expect_ring_bits(
        per_rank([&](std::uint64_t rank) { return raw_values(4099, 600 + rank, dtype); }),
        ReduceOp::kMax);
  }
}

// Were the data too tame, the tests above would pass for any order of additions.
TEST_P(GlooBits, AscendingOrderWouldBeNoticed) {
  const auto inputs = per_rank(
      [&](std::uint64_t rank) { return wide_values<float>(4099, 100 + rank, at::kFloat); });
  at::Tensor ascending = inputs[0].clone();
  for (std::size_t rank = 1; rank < inputs.size(); ++rank) {
    ascending += inputs[rank];
  }
  const auto outputs = reduce_over_gloo(world_, inputs, ReduceOp::kSum);
  const std::int64_t differing = count_differing_bytes(outputs[0], ascending);
  if (GetParam() == 2) {
    EXPECT_EQ(differing, 0);  // two terms commute
  } else {
    EXPECT_GT(differing, 100);
  }
}

// The ring rule written out for types the simulator does not reduce: chunk c starts at rank c - 1
// and descends; each hop adds in float and rounds to the type.
template <typename T>
at::Tensor ring_sum_16bit(const std::vector<at::Tensor>& inputs) {
  const auto world_size = static_cast<std::int64_t>(inputs.size());
  const std::int64_t numel = inputs[0].numel();
  at::Tensor result = at::empty_like(inputs[0]);
  const std::int64_t chunk_numel = sim::ring_chunk_numel(world_size, numel, 2);
  for (std::int64_t e = 0; e < numel; ++e) {
    const std::int64_t chunk = e / chunk_numel;
    const auto value = [&](std::int64_t rank) {
      return static_cast<float>(
          inputs[static_cast<std::size_t>(rank % world_size)].data_ptr<T>()[e]);
    };
    T sum = static_cast<T>(value(chunk + world_size - 1));
    for (std::int64_t hop = 2; hop <= world_size; ++hop) {
      sum = static_cast<T>(value(chunk + 2 * world_size - hop) + static_cast<float>(sum));
    }
    result.data_ptr<T>()[e] = sum;
  }
  return result;
}

TEST_P(GlooBits, HalfPrecisionSumsRoundAtEachHop) {
  const auto halves = per_rank([&](std::uint64_t rank) {
    return wide_values<float>(4099, 700 + rank, at::kFloat).to(at::kHalf);
  });
  EXPECT_EQ(count_differing_bytes(reduce_over_gloo(world_, halves, ReduceOp::kSum)[0],
                                  ring_sum_16bit<at::Half>(halves)),
            0);
  const auto brains = per_rank([&](std::uint64_t rank) {
    return wide_values<float>(4099, 800 + rank, at::kFloat).to(at::kBFloat16);
  });
  EXPECT_EQ(count_differing_bytes(reduce_over_gloo(world_, brains, ReduceOp::kSum)[0],
                                  ring_sum_16bit<at::BFloat16>(brains)),
            0);
}

// Two pairs for which Gloo's own float16 addition leaves the first operand unchanged.
TEST(GlooHalf, NoAdditionIsLost) {
  GlooWorld world(2);
  const std::vector<at::Tensor> inputs = {at::tensor({1.0F, 0x5p-24F}).to(at::kHalf),
                                          at::tensor({15360.0F, 5.0F}).to(at::kHalf)};
  // 15361 and 5 + 5 * 2^-24 both round to the larger term.
  const at::Tensor expected = at::tensor({15360.0F, 5.0F}).to(at::kHalf);
  for (const at::Tensor& output : reduce_over_gloo(world, inputs, ReduceOp::kSum)) {
    EXPECT_EQ(count_differing_bytes(output, expected), 0) << output;
  }
}

}  // namespace
}  // namespace lockstep::test
