// SPDX-License-Identifier: Apache-2.0
// Setups with round numbers, for hand computations.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/timing/setup.h"

namespace lockstep::test {

// Not by its own name, which GoogleTest has forbidden as a likely misspelling of SetUp.
using TimingSetup = sim::timing::Setup;

/// Flat: 10 us latency, 8 Gbit/s, so 1 ns per byte.
inline TimingSetup flat_setup(std::int64_t ranks) {
  TimingSetup setup;
  setup.world.ranks = ranks;
  setup.network.latency_us = 10.0;
  setup.network.bandwidth_gbit_per_s = 8.0;
  setup.network.algorithm = "ring";
  return setup;
}

/// Nodes of `ranks_per_node`; 1 us and 80 Gbit/s inside, so 0.1 ns per byte.
inline TimingSetup node_setup(std::int64_t ranks, std::int64_t ranks_per_node) {
  TimingSetup setup = flat_setup(ranks);
  setup.world.ranks_per_node = ranks_per_node;
  setup.network.inside_latency_us = 1.0;
  setup.network.inside_bandwidth_gbit_per_s = 80.0;
  return setup;
}

/// A layer with one tensor, 100 us forward and 200 us backward.
inline sim::timing::LayerSetup layer(std::int64_t elements) {
  sim::timing::LayerSetup spec;
  spec.name = "layer";
  spec.parameters = {elements};
  spec.forward_us = 100.0;
  spec.backward_us = 200.0;
  return spec;
}

}  // namespace lockstep::test
