// SPDX-License-Identifier: Apache-2.0
// The same scripts for RapidCheck's properties.
#pragma once

#include <rapidcheck.h>

#include "harness/fuzz/draw.h"

namespace lockstep::harness::fuzz {

/// Scripts of a space.
inline rc::Gen<Case> scripts(const Space& space) {
  return [space](const rc::Random& random, int) {
    return rc::shrinkable::just(draw_script(space, random));
  };
}

}  // namespace lockstep::harness::fuzz
