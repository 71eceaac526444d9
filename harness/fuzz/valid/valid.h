// SPDX-License-Identifier: Apache-2.0
// Which scripts are valid: whatever such a script does, DDP must follow it.
#pragma once

#include <string>

#include "harness/case.h"
#include "harness/fuzz/draw/dice.h"
#include "harness/fuzz/draw/space.h"

namespace lockstep::harness::fuzz {

/// Why the run of a script need not end equal by every oracle that predict_valid promises, in one
/// line with the rule's id; empty where it must. Faults are not looked at.
/// Precondition: check_case finds nothing but in [expect].
std::string why_not_valid(const Case& value);

/// Changes a case whose model is sound until it is valid and holds together: an option or an entry
/// that does not go with another makes way, chosen by `dice` where there is a choice. False: it got
/// to no end, and the case is to be drawn anew.
bool make_valid(Case& value, const Space& space, Dice& dice);

}  // namespace lockstep::harness::fuzz
