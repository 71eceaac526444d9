// SPDX-License-Identifier: Apache-2.0
// Contradictions between the values of a setup.
#include "sim/timing/setup.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/timing/step_plan.h"

namespace lockstep::sim::timing {

namespace {

void check_world(const Setup& setup, std::vector<SetupFinding>& findings) {
  const WorldSetup& world = setup.world;
  if (world.ranks > world.ranks_per_node && world.ranks % world.ranks_per_node != 0) {
    findings.push_back({{"world.ranks_per_node", "world.ranks"},
                        fmt::format("{} ranks do not fill nodes of {}; expected a multiple, or all "
                                    "ranks on one node",
                                    world.ranks, world.ranks_per_node)});
    return;
  }
  const std::int64_t nodes = std::max<std::int64_t>(1, world.ranks / world.ranks_per_node);
  if (world.nodes_per_switch > 0 && nodes > world.nodes_per_switch &&
      nodes % world.nodes_per_switch != 0) {
    findings.push_back({{"world.nodes_per_switch", "world.ranks"},
                        fmt::format("{} nodes do not fill switches of {}; expected a multiple, or "
                                    "all nodes below one switch",
                                    nodes, world.nodes_per_switch)});
  }
  if (setup.network.oversubscription > 1 && world.nodes_per_switch == 0) {
    findings.push_back({{"network.oversubscription"},
                        "all nodes are below one switch, so no uplink can be oversubscribed; "
                        "expected world.nodes_per_switch"});
  }
}

void check_layers(const Setup& setup, std::vector<SetupFinding>& findings) {
  std::int64_t num_layers = 0;
  double elements = 0.0;
  for (std::size_t i = 0; i < setup.layers.size(); ++i) {
    const LayerSetup& layer = setup.layers[i];
    num_layers += layer.count;
    for (const std::int64_t numel : layer.parameters) {
      elements += static_cast<double>(numel) * static_cast<double>(layer.count);
    }
    if (layer.forward_gflop_per_sample > 0 && setup.compute.gflop_per_s <= 0) {
      findings.push_back({{fmt::format("layer.{}.forward_gflop_per_sample", i)},
                          "flops take time at a rate only; expected compute.gflop_per_s above 0"});
    }
  }
  const auto finding = [&](const std::string& message) {
    findings.push_back({{"layer"}, message});
  };
  if (setup.layers.empty()) {
    finding("there is no layer; expected at least one [[layer]] with parameters");
  } else if (elements == 0.0) {
    finding("no layer has parameters with elements, so nothing is reduced; expected some");
  } else if (elements > 9e15) {
    finding(fmt::format("the layers have {:.3g} elements; expected at most 9e15", elements));
  }
  constexpr std::int64_t kMaxLayers = 200'000;
  if (num_layers > kMaxLayers) {
    finding(fmt::format("there are {} layers; expected at most {}", num_layers, kMaxLayers));
  }
}

void check_stragglers(const Setup& setup, std::vector<SetupFinding>& findings) {
  constexpr std::size_t kMaxStragglers = 16;
  if (setup.stragglers.size() > kMaxStragglers) {
    findings.push_back({{"straggler"},
                        fmt::format("{} tables of stragglers; expected at most {}",
                                    setup.stragglers.size(), kMaxStragglers)});
  }
  for (std::size_t i = 0; i < setup.stragglers.size(); ++i) {
    const StragglerSetup& straggler = setup.stragglers[i];
    const std::string path = fmt::format("straggler.{}", i);
    if (straggler.ranks.empty()) {
      findings.push_back({{path}, "nobody is slow; expected rank or ranks"});
    }
    for (const std::int64_t rank : straggler.ranks) {
      if (rank < setup.world.ranks) continue;
      findings.push_back({{path + ".rank", "world.ranks"},
                          fmt::format("there is no rank {} among {}; expected 0 to {}", rank,
                                      setup.world.ranks, setup.world.ranks - 1)});
    }
    for (const std::int64_t step : straggler.steps) {
      if (step < setup.train.steps) continue;
      findings.push_back({{path + ".step", "train.steps"},
                          fmt::format("there is no step {} among {}; expected 0 to {}", step,
                                      setup.train.steps, setup.train.steps - 1)});
    }
  }
}

}  // namespace

std::vector<SetupFinding> check_setup(const Setup& setup) {
  std::vector<SetupFinding> findings;
  check_world(setup, findings);
  check_layers(setup, findings);
  check_stragglers(setup, findings);
  if (setup.jitter.stall_probability > 0 && setup.jitter.stall_ms <= 0) {
    findings.push_back(
        {{"jitter.stall_probability"}, "a stall takes no time; expected jitter.stall_ms above 0"});
  }
  return findings;
}

}  // namespace lockstep::sim::timing
