// SPDX-License-Identifier: Apache-2.0
// Scripts with less in them.
#pragma once

#include <vector>

#include "harness/case.h"

namespace lockstep::harness::fuzz {

/// Cases that a person would call simpler than `value`: fewer ranks, steps, blocks, events,
/// options, a shorter schedule; the boldest first, each one sound (check_case finds nothing) and
/// with its own prediction as [expect]. Repeated from the first that still shows what was found,
/// this ends: every step makes the case smaller by the same measure.
std::vector<Case> smaller(const Case& value);

}  // namespace lockstep::harness::fuzz
