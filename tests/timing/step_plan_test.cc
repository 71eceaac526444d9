// SPDX-License-Identifier: Apache-2.0
// Plans of a step against hand-computed ones.
#include "sim/timing/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/timing/small_setup.h"

namespace lockstep::test {
namespace {

using sim::timing::Launch;
using sim::timing::plan_step;
using sim::timing::StepPlan;
using ::testing::ElementsAre;

constexpr std::int64_t kUs = 1'000'000;  // in ps

std::vector<std::int64_t> offsets_us(const StepPlan& plan, std::size_t segment = 0) {
  std::vector<std::int64_t> offsets;
  for (const Launch& launch : plan.segments.at(segment).launches) {
    offsets.push_back(launch.offset_ps / kUs);
  }
  return offsets;
}

std::vector<double> bytes_of(const StepPlan& plan) {
  std::vector<double> bytes;
  for (const Launch& launch : plan.segments.at(0).launches) bytes.push_back(launch.bytes);
  return bytes;
}

// Three layers of 4000, 8000 and 12000 bytes: forward 300 us, gradients at 500, 700 and 900 us.
TimingSetup three_layers() {
  TimingSetup setup = flat_setup(4);
  setup.layers = {layer(1000), layer(2000), layer(3000)};
  setup.ddp.first_bucket_cap_bytes = 1;
  setup.ddp.bucket_cap_bytes = 1;
  return setup;
}

TEST(StepPlanTest, BucketsAreLaunchedAsGradientsBecomeReadyFromTheLastLayerOn) {
  const StepPlan plan = plan_step(three_layers(), false);
  EXPECT_THAT(bytes_of(plan), ElementsAre(12'000, 8'000, 4'000));
  EXPECT_THAT(offsets_us(plan), ElementsAre(500, 700, 900));
  EXPECT_EQ(plan.segments[0].compute_ps, 900 * kUs);
}

TEST(StepPlanTest, TheFirstStepHasOneBucket) {
  const StepPlan plan = plan_step(three_layers(), true);
  EXPECT_THAT(bytes_of(plan), ElementsAre(24'000));
  EXPECT_THAT(offsets_us(plan), ElementsAre(900));
}

// 12000 reaches the first cap; 8000 + 4000 stay below the other.
TEST(StepPlanTest, TheFirstCapBoundsTheFirstBucketOnly) {
  TimingSetup setup = three_layers();
  setup.ddp.bucket_cap_bytes = 20'000;
  EXPECT_THAT(bytes_of(plan_step(setup, false)), ElementsAre(12'000, 12'000));
  EXPECT_THAT(offsets_us(plan_step(setup, false)), ElementsAre(500, 900));
}

TEST(StepPlanTest, WithoutOverlapAllBucketsWaitForTheEndOfBackward) {
  TimingSetup setup = three_layers();
  setup.ddp.overlap = false;
  EXPECT_THAT(offsets_us(plan_step(setup, false)), ElementsAre(900, 900, 900));
}

// Walk: 3 tensors at 1 us. Buckets stay as declared, the small one last; then 3 flags of 4 bytes.
TEST(StepPlanTest, FindUnusedWalksFirstKeepsTheOrderAndReducesTheUsedMapLast) {
  TimingSetup setup = three_layers();
  setup.ddp.find_unused_parameters = true;
  setup.ddp.unused_walk_ns_per_parameter = 1000.0;
  setup.ddp.bucket_cap_bytes = 20'000;
  for (const bool first : {true, false}) {
    const StepPlan plan = plan_step(setup, first);
    EXPECT_THAT(bytes_of(plan), ElementsAre(20'000, 4'000, 12));
    EXPECT_THAT(offsets_us(plan), ElementsAre(703, 903, 903));
    EXPECT_EQ(plan.segments[0].launches.back().bucket, -1);
  }
}

// Two micro-batches inside no_sync take 900 us each before the one that reduces.
TEST(StepPlanTest, NoSyncWindowsComputeWithoutReducing) {
  TimingSetup setup = three_layers();
  setup.train.micro_batches = 3;
  StepPlan plan = plan_step(setup, false);
  ASSERT_EQ(plan.segments.size(), 1U);
  EXPECT_EQ(plan.segments[0].micro_batch, 2);
  EXPECT_THAT(offsets_us(plan), ElementsAre(1800 + 500, 1800 + 700, 1800 + 900));
  setup.train.sync_on = "every";
  plan = plan_step(setup, false);
  ASSERT_EQ(plan.segments.size(), 3U);
  EXPECT_THAT(offsets_us(plan, 2), ElementsAre(500, 700, 900));
}

TEST(StepPlanTest, BackwardEndsAtTheFirstLayerWithParameters) {
  TimingSetup setup = three_layers();
  setup.layers.insert(setup.layers.begin(), layer(0));
  setup.layers.front().parameters.clear();
  const StepPlan plan = plan_step(setup, false);
  EXPECT_EQ(plan.segments[0].compute_ps, 1000 * kUs);  // 400 forward, 600 backward
}

// 2 samples at 0.5 GFLOP and 1000 GFLOP/s: 1000 us forward, three times as much backward.
TEST(StepPlanTest, FlopsTakeTimeAtTheGivenRate) {
  TimingSetup setup = flat_setup(2);
  setup.compute.gflop_per_s = 1000.0;
  setup.compute.backward_over_forward = 3.0;
  setup.train.samples_per_micro_batch = 2;
  setup.layers = {layer(10)};
  setup.layers[0].forward_us = 7.0;
  setup.layers[0].backward_us.reset();
  setup.layers[0].forward_gflop_per_sample = 0.5;
  EXPECT_EQ(plan_step(setup, false).segments[0].compute_ps, 4 * 1007 * kUs);
}

// 24000 bytes there and back at 1 GB/s: 48 us, beside 5 us of overhead; a quarter goes over.
TEST(StepPlanTest, CompressionCostsTimeAndSavesBytes) {
  TimingSetup setup = three_layers();
  setup.network.overhead_us = 5.0;
  setup.ddp.compression = 4.0;
  setup.ddp.compression_gbyte_per_s = 1.0;
  const Launch launch = plan_step(setup, true).segments[0].launches.at(0);
  EXPECT_EQ(launch.wire_bytes, 6'000.0);
  EXPECT_EQ(launch.overhead_ps, 53 * kUs);
}

TEST(StepPlanTest, TheUpdateCostsPerCallAndPerElement) {
  TimingSetup setup = three_layers();
  setup.compute.optimizer_us = 10.0;
  setup.compute.optimizer_ns_per_parameter = 0.5;
  EXPECT_EQ(plan_step(setup, false).optimizer_ps, 13 * kUs);
}

}  // namespace
}  // namespace lockstep::test
