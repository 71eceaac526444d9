// SPDX-License-Identifier: Apache-2.0
// The same scripts for RapidCheck's properties.
#pragma once

#include <rapidcheck.h>

#include "harness/fuzz/draw/draw.h"
#include "harness/fuzz/shrink/smaller.h"

namespace lockstep::harness::fuzz {

/// Scripts of a space; they shrink as `smaller` says.
inline rc::Gen<Case> scripts(const Space& space) {
  return [space](const rc::Random& random, int) {
    return rc::shrinkable::shrinkRecur(draw_script(space, random), [](const Case& value) {
      return rc::seq::fromContainer(smaller(value));
    });
  };
}

}  // namespace lockstep::harness::fuzz
