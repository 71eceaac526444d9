// SPDX-License-Identifier: Apache-2.0
// From layers to compute times and launches.
#include "sim/timing/step_plan.h"

#include <algorithm>
#include <cstddef>

namespace lockstep::sim::timing {

namespace {

/// A layer with `count` taken apart.
struct Layer {
  Ps forward_ps = 0;
  Ps backward_ps = 0;
  std::int64_t first_parameter = 0;
  std::int64_t num_parameters = 0;
};

std::vector<Layer> layers_of(const Setup& setup) {
  const ComputeSetup& compute = setup.compute;
  const auto samples = static_cast<double>(setup.train.samples_per_micro_batch);
  std::vector<Layer> layers;
  std::int64_t parameter = 0;
  for (const LayerSetup& spec : setup.layers) {
    double per_sample_us = spec.forward_us_per_sample;
    if (spec.forward_gflop_per_sample > 0) {
      per_sample_us += spec.forward_gflop_per_sample / compute.gflop_per_s * 1e6;
    }
    const double backward_us =
        spec.backward_us.value_or(spec.forward_us * compute.backward_over_forward);
    const double backward_per_sample_us =
        spec.backward_us_per_sample.value_or(per_sample_us * compute.backward_over_forward);
    Layer layer;
    layer.forward_ps = rounded_ps((spec.forward_us + samples * per_sample_us) * kPsPerUs);
    layer.backward_ps = rounded_ps((backward_us + samples * backward_per_sample_us) * kPsPerUs);
    layer.num_parameters = static_cast<std::int64_t>(spec.parameters.size());
    for (std::int64_t i = 0; i < spec.count; ++i) {
      layer.first_parameter = parameter;
      parameter += layer.num_parameters;
      layers.push_back(layer);
    }
  }
  return layers;
}

std::vector<BucketItem> items_of(const Setup& setup) {
  std::vector<BucketItem> items;
  for (const LayerSetup& layer : setup.layers) {
    for (std::int64_t i = 0; i < layer.count; ++i) {
      for (const std::int64_t numel : layer.parameters) {
        BucketItem item;
        item.bytes = numel * setup.compute.element_bytes;
        items.push_back(item);
      }
    }
  }
  return items;
}

/// Backward as seen from its begin.
struct Backward {
  Ps compute_ps = 0;
  std::vector<Ps> ready_ps;               ///< per parameter
  std::vector<std::int64_t> ready_order;  ///< of parameters
};

Backward backward_of(const std::vector<Layer>& layers, std::int64_t num_parameters) {
  Backward backward;
  backward.ready_ps.resize(static_cast<std::size_t>(num_parameters));
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    if (static_cast<std::int64_t>(backward.ready_order.size()) == num_parameters) break;
    backward.compute_ps = rounded_ps(static_cast<double>(backward.compute_ps) +
                                     static_cast<double>(layer->backward_ps));
    for (std::int64_t i = layer->num_parameters; i-- > 0;) {
      const std::int64_t parameter = layer->first_parameter + i;
      backward.ready_ps[static_cast<std::size_t>(parameter)] = backward.compute_ps;
      backward.ready_order.push_back(parameter);
    }
  }
  return backward;
}

Launch launch_of(const Setup& setup, double bytes, double compression) {
  Launch launch;
  launch.bytes = bytes;
  launch.wire_bytes = bytes / compression;
  double overhead_ps = 0.0;
  if (setup.world.ranks > 1) {
    overhead_ps = setup.network.overhead_us * kPsPerUs;
    if (compression > 1.0 && setup.ddp.compression_gbyte_per_s > 0) {
      overhead_ps += 2.0 * bytes / (setup.ddp.compression_gbyte_per_s * 1e9) * kPsPerSecond;
    }
  }
  launch.overhead_ps = rounded_ps(overhead_ps);
  return launch;
}

/// The collectives of one backward that begins `begin_ps` after the segment.
std::vector<Launch> launches_of(const Setup& setup, const std::vector<BucketItem>& items,
                                const Backward& backward, const BucketPlan& plan, Ps begin_ps) {
  std::vector<Launch> launches;
  Ps latest_ps = setup.ddp.overlap ? Ps{0} : backward.compute_ps;
  for (const std::vector<std::int64_t>& bucket : plan) {
    std::int64_t bytes = 0;
    for (const std::int64_t parameter : bucket) {
      const auto index = static_cast<std::size_t>(parameter);
      bytes += items[index].bytes;
      latest_ps = std::max(latest_ps, backward.ready_ps[index]);
    }
    Launch launch = launch_of(setup, static_cast<double>(bytes), setup.ddp.compression);
    launch.bucket = static_cast<std::int64_t>(launches.size());
    launch.num_parameters = static_cast<std::int64_t>(bucket.size());
    launch.offset_ps = begin_ps + latest_ps;
    launches.push_back(launch);
  }
  if (setup.ddp.find_unused_parameters) {
    // One int32 per parameter, reduced behind the last bucket (I4).
    constexpr double kBytesPerFlag = 4.0;
    const auto count = static_cast<std::int64_t>(items.size());
    Launch launch = launch_of(setup, kBytesPerFlag * static_cast<double>(count), 1.0);
    launch.num_parameters = count;
    launch.offset_ps = begin_ps + latest_ps;
    launches.push_back(launch);
  }
  return launches;
}

}  // namespace

StepPlan plan_step(const Setup& setup, bool first_step) {
  const std::vector<Layer> layers = layers_of(setup);
  const std::vector<BucketItem> items = items_of(setup);
  const Backward backward = backward_of(layers, static_cast<std::int64_t>(items.size()));
  const BucketCaps caps{setup.ddp.first_bucket_cap_bytes, setup.ddp.bucket_cap_bytes};
  const bool rebuilt = !first_step && !setup.ddp.find_unused_parameters;
  const BucketPlan plan = rebuilt ? rebuilt_plan(items, caps, backward.ready_order)
                                  : initial_plan(items, caps, setup.ddp.find_unused_parameters);
  double forward_ps = 0.0;
  for (const Layer& layer : layers) forward_ps += static_cast<double>(layer.forward_ps);
  double walk_ps = 0.0;
  if (setup.ddp.find_unused_parameters) {
    walk_ps = setup.ddp.unused_walk_ns_per_parameter * 1e3 * static_cast<double>(items.size());
  }

  StepPlan step;
  Segment segment;
  for (std::int64_t i = 0; i < setup.train.micro_batches; ++i) {
    const bool synchronises = setup.train.sync_on == "every" || i + 1 == setup.train.micro_batches;
    const Ps begin_ps = rounded_ps(static_cast<double>(segment.compute_ps) + forward_ps +
                                   (synchronises ? walk_ps : 0.0));
    segment.compute_ps =
        rounded_ps(static_cast<double>(begin_ps) + static_cast<double>(backward.compute_ps));
    if (!synchronises) continue;
    segment.micro_batch = i;
    segment.backward_begin_ps = begin_ps;
    segment.launches = launches_of(setup, items, backward, plan, begin_ps);
    step.segments.push_back(std::move(segment));
    segment = {};
  }
  step.optimizer_ps = rounded_ps(setup.compute.optimizer_us * kPsPerUs +
                                 setup.compute.optimizer_ns_per_parameter * 1e3 *
                                     static_cast<double>(num_elements(setup)));
  return step;
}

std::int64_t num_parameters(const Setup& setup) {
  std::int64_t count = 0;
  for (const LayerSetup& layer : setup.layers) {
    count += layer.count * static_cast<std::int64_t>(layer.parameters.size());
  }
  return count;
}

std::int64_t num_elements(const Setup& setup) {
  std::int64_t count = 0;
  for (const LayerSetup& layer : setup.layers) {
    for (const std::int64_t numel : layer.parameters) count += layer.count * numel;
  }
  return count;
}

}  // namespace lockstep::sim::timing
