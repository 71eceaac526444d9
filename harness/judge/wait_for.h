// SPDX-License-Identifier: Apache-2.0
// Who waits for whom, and the one sentence that sums an outcome up.
#pragma once

#include <string>
#include <vector>

#include "harness/outcome.h"

namespace lockstep::harness {

/// One line per rank: what it waits in and for whom, or how it ended, and the parameters that its
/// reducer still expected.
std::string wait_for_text(const std::vector<RankState>& ranks);

/// The same as a Graphviz digraph: an edge from each waiting rank to each rank it waits for.
std::string wait_for_dot(const std::vector<RankState>& ranks);

/// One sentence a person can act on.
std::string reason_of(const Outcome& outcome);

}  // namespace lockstep::harness
