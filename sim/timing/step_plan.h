// SPDX-License-Identifier: Apache-2.0
// What one rank does in a step, in its own time: compute, and when it launches which collective.
#pragma once

#include <cstdint>
#include <vector>

#include "core/bucket_layout.h"
#include "sim/timing/duration.h"
#include "sim/timing/setup.h"

namespace lockstep::sim::timing {

/// A collective of a step.
struct Launch {
  std::int64_t bucket = -1;         ///< in launch order; -1: the used map
  std::int64_t num_parameters = 0;  ///< tensors in it
  double bytes = 0.0;               ///< of the gradients; of the used map
  double wire_bytes = 0.0;          ///< after compression
  Ps offset_ps = 0;                 ///< launched so long after the segment's begin, at factor 1
  Ps overhead_ps = 0;               ///< before its first hop
};

/// From one synchronisation to the next: compute that launches collectives in order, and then the
/// wait for the last of them. Every segment has at least one.
struct Segment {
  std::int64_t micro_batch = 0;  ///< whose backward launches them
  Ps backward_begin_ps = 0;      ///< of that backward, since the begin
  Ps compute_ps = 0;
  std::vector<Launch> launches;
};

struct StepPlan {
  std::vector<Segment> segments;
  Ps optimizer_ps = 0;
};

/// The plan of step 0 or of later ones. Where unused parameters are searched for, buckets stay in
/// the order of declaration, the small one being reduced last (C13); elsewhere step 0 has one
/// bucket (C12) and later ones have them in the order in which gradients become ready (D4). A
/// bucket is launched when its last gradient is ready and all before it were launched. Backward
/// ends at the first layer with parameters.
///
/// Order:  gradients of a layer become ready together, the last tensor first.
/// Errors: UsageError for times longer than kLongestPs.
StepPlan plan_step(const Setup& setup, bool first_step);

/// All parameters, in tensors and in elements.
std::int64_t num_parameters(const Setup& setup);
std::int64_t num_elements(const Setup& setup);

}  // namespace lockstep::sim::timing
