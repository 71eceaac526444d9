// SPDX-License-Identifier: Apache-2.0
// What is true of every run of a script without a mistake: section T of the catalogue of rules.
#pragma once

#include <vector>

#include "harness/fuzz/properties/properties.h"
#include "harness/fuzz/properties/rank_events.h"
#include "harness/program.h"

namespace lockstep::harness::fuzz {

// T3 (equal gradients, the mean of the ranks') is what the oracles `ranks` and `replay` hold; T5
// and T6 are relations (relations.h); T10 (errors where they are predicted) is what broken scripts
// are for.

/// "collective_sequence" (T1), "launch_order" (T2, T8, L3), "unused_untouched" (T4).
const std::vector<Property>& run_invariants();

/// "bucket_caps" (C2, C11, C12): which parameters share a bucket, by the caps alone.
const Property& layout_invariant();

/// "dealt_samples": which samples each rank sees in each step, by what DistributedSampler promises.
const Property& sampling_invariant();

/// "reduction_window" (T2, T9), "rebuild_once" (T7): of our DDP, in the simulator. They run the
/// case once more for the events of its ranks.
const std::vector<Property>& event_invariants();

/// "dealt_samples" of the program that a case compiles to.
std::string sampling_difference(const Case& value, const Program& program);

/// What "reduction_window" and "rebuild_once" look at, given the events of every rank.
std::string window_difference(const Case& value, const Run& subject,
                              const std::vector<std::vector<RankEvent>>& events);
std::string rebuild_difference(const Case& value, const Run& subject,
                               const std::vector<std::vector<RankEvent>>& events);

}  // namespace lockstep::harness::fuzz
