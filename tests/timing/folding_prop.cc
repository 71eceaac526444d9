// SPDX-License-Identifier: Apache-2.0
// The folded simulation must say what the simulation of every rank and message says, to the bit.
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "sim/timing/prediction.h"
#include "tests/timing/small_setup.h"

namespace lockstep::test {
namespace {

using sim::timing::LayerSetup;
using sim::timing::Prediction;
using sim::timing::StragglerSetup;

template <class T>
T one_of(std::initializer_list<T> values) {
  return *rc::gen::elementOf(std::vector<T>(values));
}

void draw_world(TimingSetup& setup) {
  setup.world.ranks_per_node = *rc::gen::inRange<std::int64_t>(1, 5);
  const auto nodes = *rc::gen::inRange<std::int64_t>(1, 7);
  setup.world.ranks = setup.world.ranks_per_node * nodes;
  const auto per_switch = *rc::gen::inRange<std::int64_t>(1, 4);
  if (nodes % per_switch == 0) {
    setup.world.nodes_per_switch = per_switch;
    setup.network.oversubscription = one_of({1.0, 2.5});
  }
  setup.network.algorithm = one_of<std::string>(
      {"auto", "ring", "halving_doubling", "tree", "hierarchical", "gloo_ring"});
  setup.network.latency_us = one_of({0.0, 3.0, 50.0});
  setup.network.inside_latency_us = one_of({0.0, 1.0});
  setup.network.bandwidth_gbit_per_s = one_of({0.5, 7.0});
  setup.network.overhead_us = one_of({0.0, 11.0});
  setup.network.reduce_gbyte_per_s = one_of({0.0, 3.0});
}

void draw_model(TimingSetup& setup) {
  const auto num_layers = *rc::gen::inRange(1, 6);
  for (int i = 0; i < num_layers; ++i) {
    LayerSetup spec;
    spec.count = *rc::gen::inRange<std::int64_t>(1, 3);
    spec.parameters = *rc::gen::container<std::vector<std::int64_t>>(
        *rc::gen::inRange<std::size_t>(0, 4), rc::gen::inRange<std::int64_t>(0, 20'000));
    spec.forward_us = *rc::gen::inRange(0, 300);
    setup.layers.push_back(spec);
  }
  setup.layers.push_back(layer(*rc::gen::inRange<std::int64_t>(1, 5'000)));
  setup.compute.optimizer_us = one_of({0.0, 40.0});
}

void draw_training(TimingSetup& setup) {
  setup.train.steps = *rc::gen::inRange<std::int64_t>(1, 5);
  setup.train.micro_batches = *rc::gen::inRange<std::int64_t>(1, 4);
  setup.train.sync_on = one_of<std::string>({"every", "last"});
  setup.ddp.first_bucket_cap_bytes = one_of<std::int64_t>({1, 10'000, 1 << 20});
  setup.ddp.bucket_cap_bytes = one_of<std::int64_t>({1, 30'000, 25 << 20});
  setup.ddp.overlap = one_of({true, true, false});
  setup.ddp.find_unused_parameters = *rc::gen::arbitrary<bool>();
  setup.ddp.compression = one_of({1.0, 2.0});
}

void draw_disturbances(TimingSetup& setup) {
  setup.seed = *rc::gen::inRange<std::int64_t>(0, 1'000'000);
  setup.jitter.distribution = one_of<std::string>({"uniform", "normal", "exponential"});
  setup.jitter.compute = one_of({0.0, 0.05, 0.8});
  setup.jitter.network = one_of({0.0, 0.3});
  setup.jitter.stall_probability = one_of({0.0, 0.1, 1.0});
  setup.jitter.stall_ms = 0.7;
  const auto num_stragglers = *rc::gen::inRange(0, 3);
  for (int i = 0; i < num_stragglers; ++i) {
    StragglerSetup& straggler = setup.stragglers.emplace_back();
    straggler.ranks = {*rc::gen::inRange<std::int64_t>(0, setup.world.ranks)};
    if (*rc::gen::arbitrary<bool>()) straggler.steps = {setup.train.steps - 1};
    straggler.slowdown = one_of({1.0, 0.5, 3.0});
    straggler.delay_ms = one_of({0.0, 0.2});
  }
}

TimingSetup drawn_setup() {
  TimingSetup setup;
  draw_world(setup);
  draw_model(setup);
  draw_training(setup);
  draw_disturbances(setup);
  return setup;
}

bool same_times(const Prediction& a, const Prediction& b) {
  return a.steps == b.steps && a.timeline == b.timeline &&
         a.backward_begin_ps == b.backward_begin_ps && a.backward_end_ps == b.backward_end_ps;
}

RC_GTEST_PROP(FoldingProps, FoldedAndUnfoldedTimesAreEqual, ()) {
  const TimingSetup setup = drawn_setup();
  RC_PRE(check_setup(setup).empty());
  const Prediction folded = simulate_folded(setup);
  const Prediction unfolded = simulate_unfolded(setup);
  RC_CLASSIFY(folded.num_classes < unfolded.num_classes, "folded");
  RC_TAG(setup.network.algorithm);
  RC_ASSERT(folded.steps.size() == static_cast<std::size_t>(setup.train.steps));
  RC_ASSERT(folded.steps == unfolded.steps);
  RC_ASSERT(folded.timeline == unfolded.timeline);
  RC_ASSERT(same_times(folded, unfolded));
}

// The comparison can fail: one picosecond in one rank's compute is seen.
TEST(FoldingTest, TheComparisonSeesOneSlowRank) {
  for (const char* algorithm : {"ring", "halving_doubling", "tree", "hierarchical", "gloo_ring"}) {
    TimingSetup setup = node_setup(12, 3);
    setup.network.algorithm = algorithm;
    setup.layers = {layer(1000), layer(1000)};
    TimingSetup slow = setup;
    slow.stragglers = {{{11}, {}, 1.01, 0.0}};
    EXPECT_TRUE(same_times(simulate_folded(slow), simulate_unfolded(slow))) << algorithm;
    EXPECT_FALSE(same_times(simulate_folded(setup), simulate_unfolded(slow))) << algorithm;
  }
}

}  // namespace
}  // namespace lockstep::test
