// SPDX-License-Identifier: Apache-2.0
// How a run ended badly, for people.
#pragma once

#include <string>

#include "harness/outcome.h"

namespace lockstep::harness {

/// Lines, each ended, of what there is of: how the ranks stand, who is missing from which
/// collective, the first wrong pairing, how it came to this, the cure and what was tried in vain.
std::string describe_standing(const Outcome& outcome);

}  // namespace lockstep::harness
