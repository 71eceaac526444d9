// SPDX-License-Identifier: Apache-2.0
// What a rank waits in, from what its transport knows of the collective.
#pragma once

#include "harness/run.h"
#include "sim/world.h"

namespace lockstep::harness {

/// Everything but the ranks that are waited for.
inline WaitingIn waiting_in(const sim::CollectiveInfo& info) {
  WaitingIn waiting;
  waiting.collective = to_string(info.kind);
  waiting.site = to_string(info.tag.site);
  waiting.seq = info.seq;
  waiting.step = info.tag.step;
  waiting.bucket = info.tag.bucket;
  waiting.numel = info.numel;
  waiting.dtype = info.dtype;
  return waiting;
}

}  // namespace lockstep::harness
