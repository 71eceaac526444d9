// SPDX-License-Identifier: Apache-2.0
// Contradictions between values of a setup.
#include "sim/timing/setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "sim/timing/prediction.h"
#include "tests/timing/small_setup.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;

TimingSetup good() {
  TimingSetup setup = flat_setup(8);
  setup.layers = {layer(100)};
  return setup;
}

/// The only finding of a setup, as "key: message".
std::string finding_of(const TimingSetup& setup) {
  const auto findings = check_setup(setup);
  if (findings.size() != 1) return std::to_string(findings.size()) + " findings";
  return findings[0].keys.front() + ": " + findings[0].message;
}

TEST(SetupTest, AGoodOneHasNoFindings) { EXPECT_TRUE(check_setup(good()).empty()); }

TEST(SetupTest, NodesAndSwitchesAreFull) {
  TimingSetup setup = good();
  setup.world.ranks_per_node = 3;
  EXPECT_THAT(finding_of(setup), HasSubstr("world.ranks_per_node: 8 ranks do not fill nodes of 3"));
  setup.world.ranks_per_node = 16;
  EXPECT_TRUE(check_setup(setup).empty());
  setup.world.ranks_per_node = 2;
  setup.world.nodes_per_switch = 3;
  EXPECT_THAT(finding_of(setup), HasSubstr("4 nodes do not fill switches of 3"));
}

TEST(SetupTest, OversubscriptionNeedsSwitches) {
  TimingSetup setup = good();
  setup.network.oversubscription = 2.0;
  EXPECT_THAT(finding_of(setup), HasSubstr("expected world.nodes_per_switch"));
}

TEST(SetupTest, SomethingIsReducedAndFlopsHaveARate) {
  TimingSetup setup = good();
  setup.layers.clear();
  EXPECT_THAT(finding_of(setup), HasSubstr("there is no layer"));
  setup.layers = {layer(0)};
  EXPECT_THAT(finding_of(setup), HasSubstr("nothing is reduced"));
  setup.layers = {layer(1)};
  setup.layers[0].forward_gflop_per_sample = 1.0;
  EXPECT_THAT(finding_of(setup), HasSubstr("layer.0.forward_gflop_per_sample: flops take time"));
}

// 2^61 ps are 2.31e6 s, of which each kind of time may take an eighth: 2.88e5 s.
TEST(SetupTest, TimesThatCannotBeSimulatedAreCited) {
  TimingSetup setup = good();
  setup.train.steps = 1'000;
  setup.layers.push_back(layer(100));
  setup.layers[1].forward_us_per_sample = 1e6;
  setup.layers[1].forward_us = 1.0;
  setup.layers[1].backward_us = 1.0;
  setup.layers[1].backward_us_per_sample = 1.0;
  setup.train.samples_per_micro_batch = 287;
  EXPECT_TRUE(check_setup(setup).empty());
  setup.train.samples_per_micro_batch = 289;
  EXPECT_THAT(finding_of(setup), HasSubstr("layer.1.forward_us_per_sample: forward and backward of "
                                           "this layer take 2.89e+05 s in all steps together"));
  setup.train.samples_per_micro_batch = 150;
  setup.layers[0] = setup.layers[1];
  EXPECT_THAT(finding_of(setup), HasSubstr("layer: forward and backward of all layers take 3e+05"));

  setup = good();
  setup.compute.optimizer_us = 3e11;
  setup.train.steps = 2;
  EXPECT_THAT(finding_of(setup), HasSubstr("compute.optimizer_us: updates take 6e+05 s"));
  setup = good();
  setup.jitter.stall_probability = 0.5;
  setup.jitter.stall_ms = 1e9;
  EXPECT_THAT(finding_of(setup), HasSubstr("jitter.stall_ms: stalls would take"));
  setup = good();
  setup.stragglers.resize(1);
  setup.stragglers[0].ranks = {1};
  setup.stragglers[0].delay_ms = 1e9;
  EXPECT_THAT(finding_of(setup), HasSubstr("straggler.0.delay_ms: delays take"));
}

TEST(SetupTest, StragglersExist) {
  TimingSetup setup = good();
  setup.stragglers = {{{8}, {10}, 2.0, 0.0}};
  const auto findings = check_setup(setup);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_THAT(findings[0].message, HasSubstr("no rank 8 among 8; expected 0 to 7"));
  EXPECT_THAT(findings[1].message, HasSubstr("no step 10 among 10"));
}

TEST(SetupTest, AStallTakesTime) {
  TimingSetup setup = good();
  setup.jitter.stall_probability = 0.5;
  EXPECT_THAT(finding_of(setup), HasSubstr("jitter.stall_ms above 0"));
}

TEST(SetupTest, SimulationsRefuseAContradiction) {
  TimingSetup setup = good();
  setup.world.ranks_per_node = 3;
  EXPECT_THROW(simulate_folded(setup), UsageError);
  EXPECT_THROW(simulate_unfolded(setup), UsageError);
}

}  // namespace
}  // namespace lockstep::test
