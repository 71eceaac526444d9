// SPDX-License-Identifier: Apache-2.0
// Contradictions between the values of a setup.
#include "sim/timing/setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "sim/timing/duration.h"
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

/// One of the times that add up in a run, and the key that it comes from.
struct TimeTerm {
  double us = 0.0;
  std::string key;
};

/// What all steps take of one kind. Several kinds add up, and several segments of a step.
constexpr double kLongestSeconds = static_cast<double>(kLongestPs) / 8.0 / kPsPerSecond;

/// `terms` of one pass, in a run of so many passes; the one that takes longest is cited.
void check_time(const std::string& what, double passes, std::vector<TimeTerm> terms,
                std::vector<SetupFinding>& findings) {
  std::stable_sort(terms.begin(), terms.end(),
                   [](const TimeTerm& a, const TimeTerm& b) { return a.us > b.us; });
  double seconds = 0.0;
  std::vector<std::string> keys;
  for (const TimeTerm& term : terms) {
    seconds += term.us * passes / 1e6;
    keys.push_back(term.key);
  }
  if (seconds <= kLongestSeconds) return;
  findings.push_back(
      {keys, fmt::format("{} {:.3g} s in all steps together; expected at most {:.3g}, "
                         "the longest that is simulated",
                         what, seconds, kLongestSeconds)});
}

// What follows from single keys. Collectives are timed when it is known which there are.
void check_times(const Setup& setup, std::vector<SetupFinding>& findings) {
  const ComputeSetup& compute = setup.compute;
  const auto steps = static_cast<double>(setup.train.steps);
  const double passes = steps * static_cast<double>(setup.train.micro_batches);
  const auto samples = static_cast<double>(setup.train.samples_per_micro_batch);
  const double gflop_us = compute.gflop_per_s > 0 ? 1e6 / compute.gflop_per_s : 0.0;
  const std::size_t before = findings.size();
  double all_us = 0.0;
  for (std::size_t i = 0; i < setup.layers.size(); ++i) {
    const LayerSetup& layer = setup.layers[i];
    const std::string path = fmt::format("layer.{}.", i);
    const double per_sample_us =
        layer.forward_us_per_sample + layer.forward_gflop_per_sample * gflop_us;
    const double ratio = compute.backward_over_forward;
    const TimeTerm terms[] = {
        {layer.forward_us, path + "forward_us"},
        {layer.forward_us_per_sample * samples, path + "forward_us_per_sample"},
        {layer.forward_gflop_per_sample * gflop_us * samples, path + "forward_gflop_per_sample"},
        {layer.backward_us.value_or(layer.forward_us * ratio),
         path + (layer.backward_us ? "backward_us" : "forward_us")},
        {layer.backward_us_per_sample.value_or(per_sample_us * ratio) * samples,
         path +
             (layer.backward_us_per_sample ? "backward_us_per_sample" : "forward_us_per_sample")}};
    const auto count = static_cast<double>(layer.count);
    check_time("forward and backward of this layer take", passes * count,
               {std::begin(terms), std::end(terms)}, findings);
    for (const TimeTerm& term : terms) all_us += term.us * count;
  }
  if (findings.size() == before) {
    check_time("forward and backward of all layers take", passes, {{all_us, "layer"}}, findings);
  }
  check_time("updates take", steps,
             {{compute.optimizer_us, "compute.optimizer_us"},
              {compute.optimizer_ns_per_parameter * static_cast<double>(num_elements(setup)) / 1e3,
               "compute.optimizer_ns_per_parameter"}},
             findings);
  if (setup.ddp.find_unused_parameters) {
    check_time(
        "walks for unused parameters take", passes,
        {{setup.ddp.unused_walk_ns_per_parameter * static_cast<double>(num_parameters(setup)) / 1e3,
          "ddp.unused_walk_ns_per_parameter"}},
        findings);
  }
  if (setup.jitter.stall_probability > 0) {
    check_time("stalls would take", steps, {{setup.jitter.stall_ms * 1e3, "jitter.stall_ms"}},
               findings);
  }
  for (std::size_t i = 0; i < setup.stragglers.size(); ++i) {
    const StragglerSetup& straggler = setup.stragglers[i];
    const double late =
        straggler.steps.empty() ? steps : static_cast<double>(straggler.steps.size());
    check_time("delays take", late,
               {{straggler.delay_ms * 1e3, fmt::format("straggler.{}.delay_ms", i)}}, findings);
  }
}

}  // namespace

std::vector<SetupFinding> check_setup(const Setup& setup) {
  std::vector<SetupFinding> findings;
  check_world(setup, findings);
  check_layers(setup, findings);
  check_stragglers(setup, findings);
  if (findings.empty()) check_times(setup, findings);
  if (setup.jitter.stall_probability > 0 && setup.jitter.stall_ms <= 0) {
    findings.push_back(
        {{"jitter.stall_probability"}, "a stall takes no time; expected jitter.stall_ms above 0"});
  }
  return findings;
}

}  // namespace lockstep::sim::timing
