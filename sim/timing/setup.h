// SPDX-License-Identifier: Apache-2.0
// What is to be predicted: a data-parallel training as costs, not as numbers. Plain values with
// their units in their names; the same words as in a timing file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::sim::timing {

/// Ranks 0 .. ranks_per_node-1 are on node 0, and so on; nodes are joined to switches likewise.
struct WorldSetup {
  std::int64_t ranks = 2;
  std::int64_t ranks_per_node = 1;
  std::int64_t nodes_per_switch = 0;  ///< 0: all of them, so that nothing is oversubscribed
};

/// One link out of every node, and a faster one between ranks of a node. Full duplex.
struct NetworkSetup {
  std::string algorithm = "auto";  ///< see Algorithm, or auto
  double latency_us = 20.0;
  double bandwidth_gbit_per_s = 10.0;  ///< of the link of a node, shared by its ranks
  double inside_latency_us = 2.0;
  double inside_bandwidth_gbit_per_s = 200.0;  ///< of each rank, within its node
  double oversubscription = 1.0;  ///< what the nodes of a switch can send over what its uplink can
  double overhead_us = 0.0;       ///< of every collective on every rank, before its first byte
  double reduce_gbyte_per_s = 0.0;  ///< adding what arrives to what is there; 0: costs nothing
  double burst_bytes = 0.0;         ///< gloo_ring: that the link lets pass at once after a pause
  double backlog_bytes = 0.0;  ///< gloo_ring: that a request may find queued in the link before it
};

/// A layer, or `count` equal ones in a row. Costs are of one forward of one micro-batch.
struct LayerSetup {
  std::string name;
  std::string block;  ///< for those who derive or measure the rest: "linear 1024 4096"
  std::int64_t count = 1;
  std::vector<std::int64_t> parameters;  ///< elements of each tensor, in order of registration
  double forward_us = 0.0;               ///< of every call
  double forward_us_per_sample = 0.0;
  double forward_gflop_per_sample = 0.0;         ///< at compute.gflop_per_s
  std::optional<double> backward_us;             ///< left out: forward_us * backward_over_forward
  std::optional<double> backward_us_per_sample;  ///< left out: likewise, with the flops
};

struct ComputeSetup {
  double gflop_per_s = 0.0;  ///< 0: no layer gives flops
  double backward_over_forward = 2.0;
  double optimizer_us = 0.0;
  double optimizer_ns_per_parameter = 0.0;  ///< per element
  std::int64_t element_bytes = 4;           ///< of a parameter and its gradient
};

struct TrainSetup {
  std::int64_t steps = 10;
  std::int64_t samples_per_micro_batch = 1;  ///< per rank
  std::int64_t micro_batches = 1;
  std::string sync_on = "last";  ///< every | last: micro-batches whose backward reduces
};

struct DdpSetup {
  std::int64_t first_bucket_cap_bytes = 1 << 20;
  std::int64_t bucket_cap_bytes = 25 << 20;
  bool overlap = true;  ///< false: buckets are launched when backward is done
  bool find_unused_parameters = false;
  double unused_walk_ns_per_parameter = 500.0;  ///< per tensor, before backward
  double compression = 1.0;                     ///< bytes of a bucket over bytes on the wire
  double compression_gbyte_per_s = 0.0;         ///< there and back; 0: costs nothing
};

/// Random times. Factors have mean 1 and standard deviation `compute` or `network`; what would be
/// below 0.1 is 0.1.
struct JitterSetup {
  std::string distribution = "normal";  ///< uniform | normal | exponential (its tail is slow)
  double compute = 0.0;                 ///< forward and backward of a rank in one step
  double network = 0.0;                 ///< every hop of one collective
  double stall_probability = 0.0;       ///< that a rank stands still at the start of a step
  double stall_ms = 0.0;
};

/// Ranks that are slower than the others.
struct StragglerSetup {
  std::vector<std::int64_t> ranks;
  std::vector<std::int64_t> steps;  ///< empty: all
  double slowdown = 1.0;            ///< times forward and backward
  double delay_ms = 0.0;            ///< at the start of the step
};

struct Setup {
  std::int64_t seed = 1;
  WorldSetup world;
  NetworkSetup network;
  ComputeSetup compute;
  std::vector<LayerSetup> layers;  ///< in the order of the forward
  TrainSetup train;
  DdpSetup ddp;
  JitterSetup jitter;
  std::vector<StragglerSetup> stragglers;
};

/// A contradiction, with the keys it is about, the most relevant first ("world.ranks_per_node",
/// "layer.0.parameters").
struct SetupFinding {
  std::vector<std::string> keys;
  std::string message;
};

/// Contradictions between values each of which alone is in range. All functions that take a Setup
/// want one without any.
std::vector<SetupFinding> check_setup(const Setup& setup);

}  // namespace lockstep::sim::timing
