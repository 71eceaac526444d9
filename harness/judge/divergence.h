// SPDX-License-Identifier: Apache-2.0
// Finds the first place where a subject's run breaks a promised oracle.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/outcome.h"
#include "harness/program.h"
#include "harness/reference/derived_bound.h"
#include "harness/run.h"

namespace lockstep::harness {

/// What a subject is held against; null where an oracle is not promised.
struct References {
  const Run* replay = nullptr;
  const Run* serial = nullptr;          ///< exact cases: 0 ULP
  const DerivedBound* bound = nullptr;  ///< all others
  bool undefined_is_zero = false;       ///< against serial: an unused parameter's gradient
  bool ranks = false;                   ///< ranks must agree with each other
  /// Per rank, the steps that it has inputs for; empty: all have the same.
  std::vector<std::int64_t> num_steps;
};

struct Comparison {
  std::optional<Divergence> divergence;
  std::optional<Distance> worst;  ///< nearest approach to the derived bound
};

/// Compares step by step, and within a step in the order forward, gradient, buffer, parameter,
/// optimizer; within a phase by the oracles ranks, replay, serial; what join leaves comes last, as
/// phase final. In a step those ranks are compared that have inputs for it. Steps that one of them
/// did not complete are not compared; that ranks which ended well completed other steps than rank 0
/// did, of those that both have inputs for, is itself a breach of the oracle `ranks`.
///
/// Buffers are compared with the replay's, rank by rank: between two forwards they are each rank's
/// own (J1), so the ranks' need not agree.
Comparison compare_runs(const Run& subject, const References& references);

}  // namespace lockstep::harness
