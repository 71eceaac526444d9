// SPDX-License-Identifier: Apache-2.0
// Layout of buckets and scaling of gradients.
#include "core/bucket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace lockstep::test {
namespace {

TEST(BucketTest, PacksViewsWithoutGaps) {
  const std::vector<at::Tensor> parameters = {at::zeros({2, 3}), at::zeros({0}), at::zeros({}),
                                              at::zeros({5})};
  const Bucket bucket(parameters, {3, 1, 0, 2});
  EXPECT_EQ(bucket.flat.sizes(), (std::vector<std::int64_t>{5 + 0 + 6 + 1}));
  std::vector<std::int64_t> offsets;
  for (const Bucket::Slot& slot : bucket.slots) {
    offsets.push_back(slot.offset);
    EXPECT_EQ(slot.view.sizes(), parameters[static_cast<std::size_t>(slot.parameter)].sizes());
    EXPECT_TRUE(slot.view.is_alias_of(bucket.flat));
    EXPECT_EQ(slot.view.storage_offset(), slot.offset);
  }
  EXPECT_THAT(offsets, ::testing::ElementsAre(0, 5, 5, 11));
}

TEST(BucketTest, ADenseParameterKeepsItsStrides) {
  const at::Tensor channels_last = at::zeros({2, 3, 4, 5}).to(at::MemoryFormat::ChannelsLast);
  const Bucket bucket({channels_last}, {0});
  EXPECT_EQ(bucket.slots[0].view.strides(), channels_last.strides());
}

TEST(BucketTest, AParameterWithGapsGetsAContiguousView) {
  const at::Tensor with_gaps = at::zeros({4, 6}).narrow(1, 0, 3);
  const Bucket bucket({with_gaps}, {0});
  EXPECT_EQ(bucket.slots[0].view.strides(), (std::vector<std::int64_t>{3, 1}));
  EXPECT_EQ(bucket.flat.numel(), 12);
}

TEST(BucketTest, RejectsEmptyAndMixedBuckets) {
  EXPECT_THROW(Bucket({at::zeros({1})}, {}), UsageError);
  EXPECT_THROW(Bucket({at::zeros({1}), at::zeros({1}, at::kDouble)}, {0, 1}), UsageError);
  EXPECT_THROW(Bucket({at::zeros({1}), at::zeros({1})}, {0, 1}, /*is_sparse=*/true), UsageError);
}

// 1/3 in double, rounded to float once, times 5 is not always 5/3 rounded once: the two ways of
// scaling differ in the last bit for some values, and each must be exactly its own formula.
TEST(BucketTest, CopyingMultipliesByTheReciprocalRoundedOnce) {
  for (const std::int64_t divisor : {1, 2, 3, 5, 7}) {
    const at::Tensor gradient = at::arange(1, 200, at::kFloat);
    const at::Tensor view = at::empty_like(gradient);
    scale_into(view, gradient, divisor);
    const auto reciprocal = static_cast<float>(1.0 / static_cast<double>(divisor));
    for (std::int64_t i = 0; i < gradient.numel(); ++i) {
      EXPECT_EQ(view[i].item<float>(), gradient[i].item<float>() * reciprocal);
    }
  }
}

TEST(BucketTest, InPlaceScalingIsATrueDivision) {
  bool differs_from_reciprocal = false;
  for (const std::int64_t divisor : {1, 2, 3, 5, 7}) {
    const at::Tensor gradient = at::arange(1, 200, at::kFloat);
    const at::Tensor view = gradient.clone();
    scale_in_place(view, divisor);
    const auto reciprocal = static_cast<float>(1.0 / static_cast<double>(divisor));
    for (std::int64_t i = 0; i < gradient.numel(); ++i) {
      const auto value = gradient[i].item<float>();
      EXPECT_EQ(view[i].item<float>(), value / static_cast<float>(divisor));
      differs_from_reciprocal |= view[i].item<float>() != value * reciprocal;
    }
  }
  EXPECT_TRUE(differs_from_reciprocal);
}

TEST(BucketTest, ScalingHandlesOtherStridesAndDtypes) {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor gradient = at::arange(0, 6, dtype).view({2, 3}).t();
    const at::Tensor view = at::empty({3, 2}, dtype);
    scale_into(view, gradient, 2);
    EXPECT_TRUE(view.to(at::kDouble).equal(gradient.to(at::kDouble) / 2)) << dtype;
    EXPECT_EQ(view.scalar_type(), dtype);
  }
}

// Tensors of equal strides and few elements take short loops, all others LibTorch's kernels.
TEST(BucketTest, ShortLoopsGiveTheBitsOfLibTorchsKernels) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    at::Tensor values = at::arange(1, 36, dtype).view({5, 7}) / 7;
    values[0][0] = std::numeric_limits<double>::infinity();
    values[0][1] = std::nan("");
    values[0][2] = -0.0;
    values[0][3] = dtype == at::kFloat ? 1e-45 : 5e-324;
    values[0][4] = dtype == at::kFloat ? 3.0e38 : 1.7e308;
    const auto same_bits = [&](const at::Tensor& a, const at::Tensor& b) {
      const at::Tensor left = a.contiguous();
      const at::Tensor right = b.contiguous();
      return std::memcmp(left.data_ptr(), right.data_ptr(),
                         static_cast<std::size_t>(left.numel()) * left.element_size()) == 0;
    };
    const at::Tensor transposed = at::empty({7, 5}, dtype).t();
    for (const std::int64_t divisor : {1, 2, 3, 7}) {
      const at::Tensor linear = at::empty({5, 7}, dtype);
      scale_into(linear, values, divisor);
      scale_into(transposed, values, divisor);
      EXPECT_TRUE(same_bits(linear, transposed)) << divisor;
      EXPECT_TRUE(same_bits(linear, values * (1.0 / static_cast<double>(divisor)))) << divisor;
      const at::Tensor divided = values.clone();
      scale_in_place(divided, divisor);
      EXPECT_TRUE(same_bits(divided, values / static_cast<double>(divisor))) << divisor;
    }
    copy_into(transposed, values);
    EXPECT_TRUE(same_bits(transposed, values));
  }
}

TEST(BucketTest, LongTensorsAreScaledByTheSameFormulas) {
  const at::Tensor gradient = at::arange(1, 50001, at::kFloat);
  const at::Tensor view = at::empty_like(gradient);
  scale_into(view, gradient, 3);
  EXPECT_TRUE(view.equal(gradient * static_cast<float>(1.0 / 3.0)));
  scale_in_place(gradient, 3);
  EXPECT_TRUE(gradient.equal(at::arange(1, 50001, at::kFloat) / 3.0F));
}

// A lazily negated tensor holds other bits in memory than it means.
TEST(BucketTest, ALazilyNegatedGradientKeepsItsSign) {
  const at::Tensor negated = at::ones({4}, at::kFloat)._neg_view();
  const at::Tensor view = at::empty({4}, at::kFloat);
  scale_into(view, negated, 2);
  EXPECT_TRUE(view.equal(at::full({4}, -0.5)));
}

TEST(BucketTest, WritingIntoATensorBumpsItsVersion) {
  const at::Tensor target = at::zeros({4});
  const auto before = target._version();
  copy_into(target, at::ones({4}));
  EXPECT_EQ(target._version(), before + 1);
  EXPECT_TRUE(target.equal(at::ones({4})));
  scale_in_place(target, 2);
  EXPECT_EQ(target._version(), before + 2);
}

TEST(BucketTest, OnlyTheSameElementsInTheSameShapeAreTheSameView) {
  const at::Tensor flat = at::zeros({12});
  const at::Tensor view = flat.narrow(0, 2, 6).view({2, 3});
  EXPECT_TRUE(is_same_view(view, view.detach()));
  EXPECT_FALSE(is_same_view(view, view.clone()));
  EXPECT_FALSE(is_same_view(view, flat.narrow(0, 3, 6).view({2, 3})));
  EXPECT_FALSE(is_same_view(view, view.view({3, 2})));
}

}  // namespace
}  // namespace lockstep::test
