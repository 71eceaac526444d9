// SPDX-License-Identifier: Apache-2.0
// Puts one mistake into a script.
#pragma once

#include <rapidcheck/Random.h>

#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/fuzz/draw/space.h"

namespace lockstep::harness::fuzz {

/// Every mistake that can be planted: the kinds of faults, the actions of [[at]] that disturb, and
/// options that are missing or wrong ("missing_find_unused", "changing_static_graph",
/// "uneven_inputs", "join_throw", "own_init").
std::vector<std::string> mistakes();

/// Whether broken scripts are predicted for `space`: for our DDP over the transports that compare
/// all that ranks meet in, and with nobody beside it, for a peer makes mistakes of its own.
bool can_break(const Space& space);

/// Draws one of them into `value`, whose model, data and options give way to such as let it be seen
/// for certain; of the valid script ranks, seed, schedule and dtype stay, and what of the rest the
/// mistake allows. The same for one state of `random` on every machine.
/// False unless can_break(space).
bool plant(Case& value, const Space& space, const rc::Random& random);

/// The same for one of mistakes().
bool plant(Case& value, const Space& space, const std::string& mistake, const rc::Random& random);

}  // namespace lockstep::harness::fuzz
