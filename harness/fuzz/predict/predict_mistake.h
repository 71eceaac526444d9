// SPDX-License-Identifier: Apache-2.0
// Parts of the prediction of a script with a mistake.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/fuzz/predict/protocol.h"
#include "harness/fuzz/predict/settled.h"

namespace lockstep::harness::fuzz {

/// The first wrong numbers: in which step and phase, which oracle sees them, and what explains them
/// (empty: not said). Promised are the oracles `ranks` and `replay`.
ExpectSpec diverged(std::int64_t step, const char* phase, const char* oracle,
                    const char* cause = "");

/// That numbers are right in spite of the mistake, as far as they are without it.
ExpectSpec predict_unharmed(const Case& value);

/// "ranks" where only some make a mistake that stays on them, else "replay".
const char* oracle_of(const Case& value, const std::vector<std::int64_t>& ranks);
/// The lowest rank of a list.
std::int64_t first_rank(const std::vector<std::int64_t>& ranks);
/// The first step of a list that is not before `least`; nothing if there is none.
std::optional<std::int64_t> first_step(const Case& value, const std::vector<std::int64_t>& steps,
                                       std::int64_t least);

/// A re-entrant checkpoint that is used twice (F15); nothing where it is not so plain.
std::optional<ExpectSpec> predict_ready_twice(const Case& value);
/// A mistake that checked mode names: replicas that drift apart, by the next synchronised forward,
/// a parameter that was replaced, a backward that no forward armed (F9), and a broadcast that
/// changes what a forward has saved (J6). Nothing for others.
std::optional<ExpectSpec> predict_checked(const Case& value);

/// Processes that do not meet, or not all of them (meeting.h).
std::optional<ExpectSpec> predict_launch(const Case& value);

/// Faults, events, uneven inputs, join: there is none.
bool does_nothing_else(const Case& value);

/// Endings that the pairing of collectives does not decide: errors of construction and of join, and
/// local statistics on some ranks. Precondition for these four: settle(value) finds facts.
std::optional<ExpectSpec> predict_apart(const Case& value, const Settled& facts);
/// A hook that leaves gradients to their ranks (N3).
std::optional<ExpectSpec> predict_local_hook(const Case& value, const Settled& facts);
/// What a fault does to the numbers of ranks that all end well.
std::optional<ExpectSpec> predict_fault(const Case& value, const FaultSpec& fault,
                                        const Settled& facts);
/// The same for an [[at]] entry.
std::optional<ExpectSpec> predict_event(const Case& value, const AtSpec& at, const Settled& facts);

/// How ranks end that do not all end well.
ExpectSpec predict_ends(const Case& value, const Ends& ends);

/// What a reduction that is never finished, and noticed by nobody, leaves behind.
std::optional<ExpectSpec> predict_drift(const Case& value, std::int64_t step, const Settled& facts,
                                        const std::vector<std::string>& never_ready);

/// The first step in which rank sees other samples than it is meant to, and the lowest such rank;
/// nothing where there is none, or where only their order is another.
struct FirstOther {
  std::int64_t step = 0, rank = 0;
};
std::optional<FirstOther> first_other_batch(const Case& value, const FaultSpec& fault);

}  // namespace lockstep::harness::fuzz
