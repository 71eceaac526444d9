// SPDX-License-Identifier: Apache-2.0
// Draws training scripts.
#pragma once

#include <rapidcheck/Random.h>

#include <cstdint>

#include "harness/case.h"
#include "harness/fuzz/draw/space.h"

namespace lockstep::harness::fuzz {

/// Script number `index` of a seed, with what is predicted as its [expect]: the same on every
/// machine. check_case finds nothing in it.
/// Errors: InvariantError if nothing can be drawn from `space`.
Case draw_script(const Space& space, std::uint64_t seed, std::uint64_t index);

/// The same from a state of RapidCheck's generator.
Case draw_script(const Space& space, const rc::Random& random);

/// `value` with one topic of it drawn anew (ranks, model, training, DDP's options, entries of
/// [[at]], schedule), for a search that goes on from scripts it has seen. What no longer goes
/// together makes way.
Case redraw(const Case& value, const Space& space, std::uint64_t seed, std::uint64_t index);

}  // namespace lockstep::harness::fuzz
