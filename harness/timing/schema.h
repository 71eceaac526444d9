// SPDX-License-Identifier: Apache-2.0
// What a timing file may say; see Note [One description of the schema].
#pragma once

#include <type_traits>
#include <utility>

#include "harness/scenario/schema.h"
#include "harness/timing/study.h"

namespace lockstep::harness {

namespace timing = sim::timing;

inline constexpr IntRange kManyRanks{0, 999'999};
inline constexpr RealRange kPositive{0.0, 1e15, true};
inline constexpr RealRange kMicroseconds{0.0, 1e12};

/// What claims can be about, in the order of tables and JSON.
inline Choices timing_quantities() {
  return {{"step_ms", "micro_batch_ms", "slowest_step_ms", "samples_per_s", "compute_ms",
           "communication_ms", "exposed_ms", "exposed_share", "overlap_share", "gradient_bytes",
           "wire_bytes_per_rank", "wire_bytes", "buckets"}};
}

template <class V>
void describe(V& v, Of<timing::WorldSetup>) {
  using S = timing::WorldSetup;
  v.field("ranks", &S::ranks, IntRange{1, 1'000'000}, "number of ranks");
  v.field("ranks_per_node", &S::ranks_per_node, IntRange{1, 1'000'000},
          "ranks that share the faster inside of a node and its link to the outside");
  v.field("nodes_per_switch", &S::nodes_per_switch, IntRange{0, 1'000'000},
          "nodes below one switch; 0: all, and nothing is oversubscribed");
}

template <class V>
void describe(V& v, Of<timing::NetworkSetup>) {
  using S = timing::NetworkSetup;
  v.field("algorithm", &S::algorithm,
          Choices{{"auto", "ring", "halving_doubling", "tree", "hierarchical", "gloo_ring"}},
          "of all_reduce; auto: for each number of bytes the quickest, but for Gloo's own");
  v.field("latency_us", &S::latency_us, kMicroseconds, "between nodes");
  v.field("bandwidth_gbit_per_s", &S::bandwidth_gbit_per_s, kPositive,
          "of the link of a node, each way, shared by its ranks");
  v.field("inside_latency_us", &S::inside_latency_us, kMicroseconds, "between ranks of a node");
  v.field("inside_bandwidth_gbit_per_s", &S::inside_bandwidth_gbit_per_s, kPositive,
          "of a rank to its neighbours on the node, each way");
  v.field("oversubscription", &S::oversubscription, RealRange{1.0, 1e6},
          "what the nodes of a switch can send over what its uplink carries");
  v.field("overhead_us", &S::overhead_us, kMicroseconds, "of every collective on every rank");
  v.field("reduce_gbyte_per_s", &S::reduce_gbyte_per_s, kNotNegative,
          "adding what arrives; 0: costs nothing");
  v.field("burst_bytes", &S::burst_bytes, kNotNegative,
          "gloo_ring: what a shaped link lets pass at once after a pause");
  v.field("backlog_bytes", &S::backlog_bytes, kNotNegative,
          "gloo_ring: what a request may find queued before it, of another connection");
}

template <class V>
void describe(V& v, Of<timing::ComputeSetup>) {
  using S = timing::ComputeSetup;
  v.field("gflop_per_s", &S::gflop_per_s, kNotNegative, "rate of layers that give their flops");
  v.field("backward_over_forward", &S::backward_over_forward, RealRange{0.0, 1e6},
          "time of a layer's backward, where it gives none");
  v.field("optimizer_us", &S::optimizer_us, kMicroseconds, "of an update");
  v.field("optimizer_ns_per_parameter", &S::optimizer_ns_per_parameter, kNotNegative,
          "of an update, per element");
  v.field("element_bytes", &S::element_bytes, IntRange{1, 16}, "of a gradient's element");
}

template <class V>
void describe(V& v, Of<timing::LayerSetup>) {
  using S = timing::LayerSetup;
  v.field("name", &S::name, Text{}, "for tables");
  v.field("block", &S::block, Text{},
          "\"linear 1024 4096\": gives parameters, flops and what --measure measures");
  v.field("count", &S::count, IntRange{1, 100'000}, "so many equal layers, one after the other");
  v.field("parameters", &S::parameters, ListOf<IntRange>{{0, kInt64Max / 64}, 0, 10'000},
          "elements of each tensor, in order of registration");
  v.field("forward_us", &S::forward_us, kMicroseconds, "of a forward, whatever the batch");
  v.field("forward_us_per_sample", &S::forward_us_per_sample, kMicroseconds, "beside it");
  v.field("forward_gflop_per_sample", &S::forward_gflop_per_sample, kNotNegative,
          "beside it, at compute.gflop_per_s");
  v.field("backward_us", &S::backward_us, kMicroseconds,
          "left out: forward_us * backward_over_forward");
  v.field("backward_us_per_sample", &S::backward_us_per_sample, kMicroseconds,
          "left out: what the forward takes per sample * backward_over_forward");
}

template <class V>
void describe(V& v, Of<timing::TrainSetup>) {
  using S = timing::TrainSetup;
  v.field("steps", &S::steps, IntRange{1, 100'000}, "the first one counts only if there is one");
  v.field("samples_per_micro_batch", &S::samples_per_micro_batch, IntRange{1, 1'000'000'000},
          "per rank");
  v.field("micro_batches", &S::micro_batches, IntRange{1, 10'000}, "per step");
  v.field("sync_on", &S::sync_on, Choices{{"every", "last"}},
          "which micro-batches of a step reduce gradients; the others are inside no_sync");
}

template <class V>
void describe(V& v, Of<timing::DdpSetup>) {
  using S = timing::DdpSetup;
  v.field("first_bucket_cap_bytes", &S::first_bucket_cap_bytes, IntRange{1, kInt64Max},
          "size at which the first bucket is closed");
  v.field("bucket_cap_bytes", &S::bucket_cap_bytes, IntRange{1, kInt64Max},
          "size at which any other bucket is closed");
  v.field("overlap", &S::overlap, Any{}, "false: buckets are launched when backward is done");
  v.field("find_unused_parameters", &S::find_unused_parameters, Any{},
          "walk the graph before backward, reduce the used map after it");
  v.field("unused_walk_ns_per_parameter", &S::unused_walk_ns_per_parameter, kNotNegative,
          "of that walk, per tensor");
  v.field("compression", &S::compression, RealRange{1.0, 1e6},
          "bytes of gradients over bytes on the wire");
  v.field("compression_gbyte_per_s", &S::compression_gbyte_per_s, kNotNegative,
          "of compressing and restoring; 0: costs nothing");
}

template <class V>
void describe(V& v, Of<timing::JitterSetup>) {
  using S = timing::JitterSetup;
  v.field("distribution", &S::distribution, Choices{{"uniform", "normal", "exponential"}},
          "of factors with mean 1; exponential has a tail of slow ones");
  v.field("compute", &S::compute, RealRange{0.0, 1.0},
          "standard deviation of the factor of a rank's forward and backward in one step");
  v.field("network", &S::network, RealRange{0.0, 1.0},
          "standard deviation of the factor of all hops of one collective");
  v.field("stall_probability", &S::stall_probability, RealRange{0.0, 1.0},
          "that a rank stands still at the start of a step");
  v.field("stall_ms", &S::stall_ms, RealRange{0.0, 1e9}, "for so long");
}

template <class V>
void describe(V& v, Of<timing::StragglerSetup>) {
  using S = timing::StragglerSetup;
  v.one_or_many("rank", "ranks", &S::ranks, ListOf<IntRange>{kManyRanks, 1, 10'000, true}, "who");
  v.one_or_many("step", "steps", &S::steps, ListOf<IntRange>{kStep, 0, 100'000, true},
                "when, from 0; left out: all steps");
  v.field("slowdown", &S::slowdown, RealRange{0.01, 1e6}, "times forward and backward");
  v.field("delay_ms", &S::delay_ms, RealRange{0.0, 1e9}, "at the start of the step");
}

template <class V>
void describe(V& v, Of<ClaimSpec>) {
  v.needed("claim", &ClaimSpec::claim,
           Choices{{"bounds", "ratio", "falls", "rises", "interior_minimum"}}, "its kind");
  v.field("of", &ClaimSpec::of, timing_quantities(), "what it is about");
  v.field("over", &ClaimSpec::over, Text{}, "all kinds but bounds: along which axis of [vary]");
  v.field(
      "only", &ClaimSpec::only, Text{},
      "regular expression without counts and back-references; left out are points in whose name "
      "it is not found");
  v.field("min", &ClaimSpec::min, kReal,
          "bounds, ratio; falls, rises, interior_minimum: the least factor");
  v.field("max", &ClaimSpec::max, kReal, "bounds, ratio");
}

template <class V>
void describe(V& v, Of<TimingCase>) {
  using S = TimingCase;
  using Base = timing::Setup;
  // A schema names members of the struct it describes, not of its base.
  const auto own = [](auto Base::*member) {
    return static_cast<std::remove_reference_t<decltype(std::declval<Base>().*member)> S::*>(
        member);
  };
  v.field("kind", &S::kind, Choices{{"timing"}}, "tells a timing file from a scenario");
  v.field("title", &S::title, Any{}, "what the file shows, in one sentence");
  v.field("seed", own(&Base::seed), IntRange{0, kInt64Max}, "jitter derives from it");
  v.table("world", own(&Base::world), "");
  v.table("network", own(&Base::network), "");
  v.table("compute", own(&Base::compute), "");
  v.tables("layer", own(&Base::layers), TablesPlace::kSections,
           "layers in the order of the forward");
  v.table("train", own(&Base::train), "");
  v.table("ddp", own(&Base::ddp), "");
  v.table("jitter", own(&Base::jitter), "");
  v.tables("straggler", own(&Base::stragglers), TablesPlace::kSections, "slow ranks");
  v.tables("expect", &S::claims, TablesPlace::kSections, "what must be true");
}

}  // namespace lockstep::harness
