// SPDX-License-Identifier: Apache-2.0
// What predicting costs: a million ranks folded, and events per second message by message.
#include <fmt/format.h>
#include <sys/resource.h>

#include "sim/timing/prediction.h"

namespace {

using lockstep::sim::timing::Prediction;
using lockstep::sim::timing::Setup;

rusage usage() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return used;
}

/// Of the processor, so that what else the machine does is left out.
double cpu_seconds() {
  const timeval time = usage().ru_utime;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

double peak_megabytes() { return static_cast<double>(usage().ru_maxrss) / 1e3; }

/// 50 layers of a million parameters, a bucket each; every random time switched on.
Setup setup_of(std::int64_t ranks, std::int64_t steps, const char* algorithm) {
  Setup setup;
  setup.world.ranks = ranks;
  setup.world.ranks_per_node = 8;
  setup.network.algorithm = algorithm;
  setup.layers.resize(1);
  setup.layers[0].count = 50;
  setup.layers[0].parameters = {1'000'000};
  setup.layers[0].forward_us = 300.0;
  setup.ddp.first_bucket_cap_bytes = 1;
  setup.ddp.bucket_cap_bytes = 1;
  setup.train.steps = steps;
  setup.jitter.compute = 0.05;
  setup.jitter.network = 0.05;
  setup.jitter.stall_probability = 1e-6;
  setup.jitter.stall_ms = 20.0;
  return setup;
}

template <class Simulate>
void report(const char* name, const Setup& setup, const Simulate& simulate) {
  const double start_s = cpu_seconds();
  const Prediction prediction = simulate(setup);
  const double took_s = cpu_seconds() - start_s;
  const double parts =
      static_cast<double>(prediction.num_collectives) * static_cast<double>(setup.world.ranks);
  fmt::print(
      "{:<9} {:<16} {:>9} ranks {:>4} steps {:>3} buckets: {:7.3f} s of a core, {} classes, {:.3g} "
      "events "
      "({:.3g}/s) for {:.3g} ends of a collective on a rank ({:.3g}/s), step {:.3f} ms, peak "
      "memory {:.1f} MB\n",
      name, setup.network.algorithm, setup.world.ranks, setup.train.steps,
      prediction.timeline.size(), took_s, prediction.num_classes,
      static_cast<double>(prediction.num_events),
      static_cast<double>(prediction.num_events) / took_s, parts, parts / took_s,
      mean_step_ms(prediction), peak_megabytes());
}

}  // namespace

int main() {
  for (const char* algorithm : {"hierarchical", "ring", "halving_doubling", "tree", "auto"}) {
    report("folded", setup_of(1'000'000, 100, algorithm), lockstep::sim::timing::simulate_folded);
  }
  for (const char* algorithm : {"ring", "halving_doubling"}) {
    report("unfolded", setup_of(64, 4, algorithm), lockstep::sim::timing::simulate_unfolded);
  }
}
