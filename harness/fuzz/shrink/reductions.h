// SPDX-License-Identifier: Apache-2.0
// The ways to make a script smaller, by topic.
#pragma once

#include "harness/fuzz/shrink/candidates.h"

namespace lockstep::harness::fuzz {

// reduce_extent.cc: whoever is named by an entry moves to the last one that is left.
void reduce_ranks(Candidates& candidates);
void reduce_steps(Candidates& candidates);
/// Micro-batches, forwards and samples.
void reduce_window(Candidates& candidates);

// reduce_blocks.cc, reduce_sizes.cc: names of what is gone stand for what is left (block_edits.h).
void reduce_model(Candidates& candidates);   ///< the smallest models there are
void reduce_blocks(Candidates& candidates);  ///< without some of its blocks
void reduce_sizes(Candidates& candidates);
void reduce_block_kinds(Candidates& candidates);

// reduce_keys.cc: what the schema says of a key is enough to make it smaller.
void reduce_options(Candidates& candidates);  ///< keys at their defaults
void reduce_entries(Candidates& candidates);  ///< without some [[at]] and [[fault]]
void reduce_places(Candidates& candidates);   ///< keys of [[at]] and [[fault]]
void reduce_numbers(Candidates& candidates);  ///< values nearer to nothing

// reduce_schedule.cc
void reduce_schedule(Candidates& candidates);  ///< the default one, or fewer deviations from it
void reduce_runs(Candidates& candidates);      ///< fewer schedules

}  // namespace lockstep::harness::fuzz
