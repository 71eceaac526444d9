// SPDX-License-Identifier: Apache-2.0
// What blocks cost on this machine.
#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/check.h"
#include "harness/block_module.h"
#include "harness/timing/blocks.h"
#include "harness/wall_clock.h"

namespace lockstep::harness {

using sim::timing::LayerSetup;
using sim::timing::Setup;

namespace {

/// In microseconds, to the nanosecond.
double median_us(std::vector<double>& seconds) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return std::round(*middle * 1e9) / 1e3;
}

void measure(LayerSetup& layer, std::int64_t samples, double seconds) {
  const BlockSpec spec = parse_block(layer.block).spec;
  BlockModule module(spec, at::kFloat);
  InitialValues initial;
  for (const TensorSpec& parameter : block_parameters(spec)) {
    module.set_parameter(parameter.name, draw_parameter(spec, parameter, at::kFloat, initial));
    ++initial.index;
  }
  // Its gradient is part of backward, as it is for all layers but the first.
  const at::Tensor input = torch::full({samples, spec.in}, 0.5).requires_grad_(true);
  const at::Tensor slope = torch::full({samples, spec.out}, 0.25);
  std::vector<double> forward_s;
  std::vector<double> backward_s;
  constexpr std::size_t kWarmUps = 3;
  constexpr std::size_t kLeast = 10;
  const double end_s = wall_seconds() + seconds;
  for (std::size_t i = 0; i < kWarmUps + kLeast || wall_seconds() < end_s; ++i) {
    const double begin_s = wall_seconds();
    const at::Tensor output = module.forward(input);
    const double middle_s = wall_seconds();
    output.backward(slope);
    if (i >= kWarmUps) {
      forward_s.push_back(middle_s - begin_s);
      backward_s.push_back(wall_seconds() - middle_s);
    }
  }
  layer.forward_us = median_us(forward_s);
  layer.backward_us = median_us(backward_s);
  layer.forward_us_per_sample = layer.forward_gflop_per_sample = 0.0;
  layer.backward_us_per_sample.reset();
}

}  // namespace

void measure_blocks(Setup& setup, double seconds_per_layer) {
  at::set_num_threads(1);
  bool any = false;
  for (LayerSetup& layer : setup.layers) {
    if (layer.block.empty()) continue;
    measure(layer, setup.train.samples_per_micro_batch, seconds_per_layer);
    any = true;
  }
  LOCKSTEP_USAGE(any,
                 "no layer has a block that could be measured; expected block = \"linear IN "
                 "OUT\" in some [[layer]]");
}

}  // namespace lockstep::harness
