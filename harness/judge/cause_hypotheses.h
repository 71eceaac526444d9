// SPDX-License-Identifier: Apache-2.0
// Guesses at what went wrong, each tested by recomputing the numbers.
#pragma once

#include <vector>

#include "harness/outcome.h"
#include "harness/program.h"
#include "harness/run.h"

namespace lockstep::harness {

/// The hypotheses that fit the diverging tensor, exact fits first. Runs the replay once more with
/// its inner values kept. A hypothesis that predicts what was expected anyhow is not offered.
///
/// gradient:  times_world_size, over_world_size, times_batch, local_only, local_over_world_size,
///            rank_missing, micro_batch_missing, micro_batch_not_reduced, stale_gradient,
///            other_slot, corrupted, scaled
/// parameter: not_updated
/// buffer:    local_buffers
/// forward:   same_batches, stale_batch, times_batch, scaled
/// init:      own_initialisation
std::vector<CauseHypothesis> causes_of(const Divergence& divergence, const Program& replay,
                                       const Run& subject, const Run& replayed, const Run* serial);

}  // namespace lockstep::harness
