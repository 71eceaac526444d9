// SPDX-License-Identifier: Apache-2.0
// Whole steps against hand-computed times; both simulations must give them.
#include <gtest/gtest.h>

#include <functional>

#include "sim/timing/prediction.h"
#include "tests/timing/small_setup.h"

namespace lockstep::test {
namespace {

using sim::timing::CollectiveTimes;
using sim::timing::Prediction;
using sim::timing::simulate_folded;
using sim::timing::simulate_unfolded;

constexpr std::int64_t kUs = 1'000'000;  // in ps

class BothSimulations : public ::testing::TestWithParam<bool> {
 protected:
  Prediction simulate(const TimingSetup& setup) {
    return GetParam() ? simulate_unfolded(setup) : simulate_folded(setup);
  }
};
INSTANTIATE_TEST_SUITE_P(Timing, BothSimulations, ::testing::Values(false, true),
                         [](const auto& mode) { return mode.param ? "Unfolded" : "Folded"; });

// 2 ranks, two buckets of 400 kB: a ring takes 2 (10 us + 200 us) = 420 us. Forward 200 us,
// gradients at 400 and 600 us; so bucket 0 runs 400 .. 820, bucket 1 waits for it, 820 .. 1240.
TimingSetup two_buckets() {
  TimingSetup setup = flat_setup(2);
  setup.layers = {layer(100'000), layer(100'000)};
  setup.ddp.first_bucket_cap_bytes = 1;
  setup.ddp.bucket_cap_bytes = 1;
  setup.compute.optimizer_us = 60.0;
  setup.train.steps = 3;
  return setup;
}

TEST_P(BothSimulations, CollectivesOfARankRunOneAfterTheOther) {
  const Prediction p = simulate(two_buckets());
  ASSERT_EQ(p.timeline.size(), 2U);
  EXPECT_EQ(p.timeline[0].ready_ps, 400 * kUs);
  EXPECT_EQ(p.timeline[0].begin_ps, 400 * kUs);
  EXPECT_EQ(p.timeline[0].end_ps, 820 * kUs);
  EXPECT_EQ(p.timeline[1].ready_ps, 600 * kUs);
  EXPECT_EQ(p.timeline[1].begin_ps, 820 * kUs);
  EXPECT_EQ(p.timeline[1].end_ps, 1240 * kUs);
  EXPECT_EQ(p.backward_begin_ps.at(0), 200 * kUs);
  EXPECT_EQ(p.backward_end_ps.at(0), 600 * kUs);
  EXPECT_EQ(mean_step_ms(p), 1.3);
  EXPECT_EQ(mean_exposed_ms(p), 0.64);
  EXPECT_EQ(p.communication_ps, 840 * kUs);
  EXPECT_EQ(p.wire_bytes, 2 * 800'000.0);
}

// Step 0 has one bucket of 800 kB: 600 + 2 (10 + 400) + 60 us.
TEST_P(BothSimulations, TheFirstStepDoesNotOverlap) {
  const Prediction p = simulate(two_buckets());
  EXPECT_EQ(p.steps[0].end_ps - p.steps[0].begin_ps, (600 + 820 + 60) * kUs);
}

// Rank 1 computes half as fast: gradients at 800 and 1200 us there, so the buckets run 800 .. 1220
// and 1220 .. 1640 on both ranks.
TEST_P(BothSimulations, AStragglerHoldsUpEverybody) {
  TimingSetup setup = two_buckets();
  setup.stragglers = {{{1}, {}, 2.0, 0.0}};
  const Prediction p = simulate(setup);
  EXPECT_EQ(p.timeline[0].begin_ps, 400 * kUs);  // rank 0 waits inside of the collective
  EXPECT_EQ(p.timeline[0].end_ps, 1220 * kUs);
  EXPECT_EQ(p.timeline[1].end_ps, 1640 * kUs);
  EXPECT_EQ(mean_step_ms(p), 1.7);
  EXPECT_EQ(mean_exposed_ms(p), 0.44);
}

// Every micro-batch reduces: 3 times 1240 us; only the last one does: 1200 us of compute before it.
TEST_P(BothSimulations, ReducingOnceInThreeMicroBatchesSavesTwoReductions) {
  TimingSetup setup = two_buckets();
  setup.train.micro_batches = 3;
  setup.train.sync_on = "every";
  EXPECT_EQ(mean_step_ms(simulate(setup)), 3 * 1.24 + 0.06);
  setup.train.sync_on = "last";
  EXPECT_EQ(mean_step_ms(simulate(setup)), 1.2 + 1.24 + 0.06);
}

// 30 us before the first byte of each of the two buckets, one after the other.
TEST_P(BothSimulations, OverheadIsPaidPerCollective) {
  TimingSetup setup = two_buckets();
  setup.network.overhead_us = 30.0;
  EXPECT_EQ(mean_step_ms(simulate(setup)), 1.3 + 0.06);
}

TEST_P(BothSimulations, AloneARankOnlyComputes) {
  TimingSetup setup = two_buckets();
  setup.world.ranks = 1;
  const Prediction p = simulate(setup);
  EXPECT_EQ(mean_step_ms(p), 0.66);
  EXPECT_EQ(mean_exposed_ms(p), 0.0);
  EXPECT_EQ(p.wire_bytes, 0.0);
}

TEST_P(BothSimulations, TheSameSetupGivesTheSameBitsAndAnotherSeedOthers) {
  TimingSetup setup = two_buckets();
  setup.world.ranks = 5;
  setup.jitter.compute = 0.1;
  setup.jitter.network = 0.1;
  const Prediction p = simulate(setup);
  EXPECT_TRUE(p.steps == simulate(setup).steps);
  setup.seed = 2;
  EXPECT_FALSE(p.steps == simulate(setup).steps);
}

// 70 billion parameters are 280 GB of float32 gradients, nearly twice of which a rank sends.
TEST(SimulationTest, GradientsOfSeventyBillionParametersAre280GigabytesAndGoOutNearlyTwice) {
  TimingSetup setup = flat_setup(1024);
  setup.layers = {layer(875'000'000)};
  setup.layers[0].count = 80;
  const Prediction p = simulate_folded(setup);
  EXPECT_EQ(p.gradient_bytes, 280e9);
  EXPECT_NEAR(p.wire_bytes / 1024, 2 * 1023.0 / 1024 * 280e9, 1e3);
}

TEST(SimulationTest, AMillionRanksAreOneClassBesideTheOneThatIsTold) {
  TimingSetup setup = two_buckets();
  setup.world.ranks = 1'000'000;
  EXPECT_EQ(simulate_folded(setup).num_classes, 2);
}

}  // namespace
}  // namespace lockstep::test
