// SPDX-License-Identifier: Apache-2.0
// The same scripts for RapidCheck's properties.
#pragma once

#include <rapidcheck.h>

#include "harness/fuzz/draw.h"

namespace lockstep::harness::fuzz {

/// Scripts of a space; they shrink as `smaller` says.
rc::Gen<Case> scripts(const Space& space);

}  // namespace lockstep::harness::fuzz
