// SPDX-License-Identifier: Apache-2.0
// Who waits for whom, and the one sentence that sums an outcome up.
#pragma once

#include <string>
#include <vector>

#include "harness/outcome.h"

namespace lockstep::harness {

/// One line for ranks that stand alike: what they wait in and for whom, or how they ended, and the
/// parameters that their reducers still expected.
std::string wait_for_text(const std::vector<RankState>& ranks);

/// The same as a Graphviz digraph: a node for ranks that stand alike, named after the lowest, and
/// an edge from those that wait to those that they wait for.
std::string wait_for_dot(const std::vector<RankState>& ranks);

/// One sentence a person can act on.
std::string reason_of(const Outcome& outcome);

}  // namespace lockstep::harness
