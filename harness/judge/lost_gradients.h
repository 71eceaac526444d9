// SPDX-License-Identifier: Apache-2.0
// Why a parameter's gradient never came: the edge of the graph that lost it.
#pragma once

#include <vector>

#include "harness/outcome.h"
#include "harness/program.h"

namespace lockstep::harness {

/// Fills `why` of every parameter that a rank's reducer still expected. The forward and backward of
/// the micro-batch that armed the reducer are computed once more, by that rank alone, and every
/// block's output is watched for its gradient. Reasons begin with "block ...":
///   "block vision was not run"
///   "block vision was not run: forward ended after block trunk"
///   "block spare is in no stage of forward"
///   "block trunk: its output went through block cut (detach) before block text"
///   "block text: its output was not used by the loss"
/// or say what became of the parameter or the backward: frozen, replaced, left out.
///
/// `subject`: compile_subject of the case. Ranks of one route share the work.
void explain_never_ready(const Program& subject, std::vector<RankState>& ranks);

}  // namespace lockstep::harness
