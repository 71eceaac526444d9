// SPDX-License-Identifier: Apache-2.0
// Names that a file may use, where there are many or several places know them.
#pragma once

#include <cstddef>

#include "harness/fault_kinds.h"
#include "harness/scenario/constraints.h"

namespace lockstep::harness {

/// What collectives are for: core's CallSite, by name.
inline Choices call_sites() {
  return {{"param_count", "param_shapes", "module_states", "bucket", "used_map", "rebuild_order",
           "rebuild_sizes", "buffers", "parameter", "barrier", "script", "checks",
           "sync_batch_norm", "join_active", "join_early_end", "join_plan", "join_source"}};
}

inline Choices schedule_policies() {
  return {{"round_robin", "random", "pct", "exhaustive", "replay"}};
}

inline Choices sync_kinds() { return {{"ddp", "torch", "per_parameter", "flat", "none"}}; }

/// Of [[fault]]; see FaultSpec.
inline Choices fault_kinds() {
  Choices choices = {};
  std::size_t count = 0;
  for (const FaultKind& kind : kFaultKinds) choices.names[count++] = kind.name;
  return choices;
}

/// What explains the numbers, or how it came to an end.
inline Choices causes() {
  return {{"times_world_size",
           "over_world_size",
           "times_batch",
           "local_only",
           "local_over_world_size",
           "rank_missing",
           "micro_batch_missing",
           "micro_batch_not_reduced",
           "stale_gradient",
           "other_slot",
           "corrupted",
           "scaled",
           "not_updated",
           "local_buffers",
           "same_batches",
           "stale_batch",
           "own_initialisation",
           "join_divisor",
           "optimizer_state_lost",
           "later_backward_local",
           "local_statistics",
           "not_finite",
           "own_shuffle",
           "epoch_not_set",
           "shared_noise",
           "unfinished_hang",
           "unfinished_error",
           "unfinished_drift",
           "wrong_pairing"}};
}

/// Changes that are tried; see judge/cures.h.
inline Choices cures() {
  return {{"find_unused_parameters", "static_graph", "join", "join_divide_by_active",
           "evaluate_inner_module", "broadcast_buffers_off", "agreed_skip", "leave_together",
           "evaluate_on_all_ranks", "collective_on_all_ranks", "without_extra_collective",
           "run_all_blocks", "all_ranks", "without_fault"}};
}

}  // namespace lockstep::harness
