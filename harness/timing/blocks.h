// SPDX-License-Identifier: Apache-2.0
// Layers that are given as blocks: what follows from the text, and what they cost on this machine.
#pragma once

#include <string>
#include <vector>

#include "harness/scenario.h"
#include "harness/timing/study.h"

namespace lockstep::harness {

/// Gives every layer with a block its parameters and, where no time is given, its flops. Without
/// compute.gflop_per_s such a layer takes no time until it is measured.
/// Errors: findings for what is no linear block, and for layers that also give parameters or flops.
std::vector<CaseFinding> resolve_blocks(sim::timing::Setup& setup);

/// Replaces the times of all layers with a block by what one forward and one backward take on this
/// machine, on one thread with train.samples_per_micro_batch samples: medians over repetitions that
/// take about `seconds_per_layer` each. Layers without a block keep theirs.
///
/// Uses the wall clock: a prediction from it is of this machine and this moment.
/// Errors: UsageError if no layer has a block.
void measure_blocks(sim::timing::Setup& setup, double seconds_per_layer = 0.3);

/// The layers as [[layer]] tables, times included, so that a prediction can be repeated.
std::string layers_text(const sim::timing::Setup& setup);

}  // namespace lockstep::harness
