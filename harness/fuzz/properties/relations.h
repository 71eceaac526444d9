// SPDX-License-Identifier: Apache-2.0
// Relations between a script and another that must come to the same numbers.
#pragma once

#include <vector>

#include "harness/fuzz/properties/properties.h"

namespace lockstep::harness::fuzz {

// Note [Only what is certain]
// A sum of floating-point numbers depends on their order, and the order on where a bucket cuts the
// ring's chunks (D9). So relations that change buckets or ranks hold bit for bit for at most two
// contributions, whose addition commutes, or where nothing is rounded; a script for which neither
// is known has no such relation. The same with division: a reciprocal and a quotient agree for
// powers of two (G4). Where a case is exact, zeros may differ in sign, for a zero that is absent
// from one sum may be there in another; elsewhere every bit counts.

/// "bucket_cap", "gradient_view", "all_reduce_hook", "static_graph": other options of the wrapper.
const std::vector<Property>& option_relations();

/// "schedule", "rank_permutation", "micro_batches", "no_sync", "world_size_one": the same training
/// in another order, on other ranks, in other pieces, or without a wrapper.
const std::vector<Property>& script_relations();

/// `variant` on the default schedule, with nothing expected of it.
Case as_variant(Case variant);

/// Whether a scenario file could say this, and DDP would have to follow it.
bool is_sound(const Case& variant);

}  // namespace lockstep::harness::fuzz
