// SPDX-License-Identifier: Apache-2.0
// Who waits for whom at the end of a run, for people and for Graphviz.
#pragma once

#include <string>

#include "sim/world.h"

namespace lockstep::sim {

/// One line per rank, in rank order, each ended by a newline:
/// "rank 0 waits in collective 3, all_reduce (bucket 0, step 1, 42 x Float), for ranks 1, 2",
/// "rank 1 finished", "rank 2 failed: message".
std::string wait_for_text(const WorldResult& result);

/// The same as a directed graph in Graphviz's language: a node per rank, an edge from each waiting
/// rank to each rank that it waits for.
std::string wait_for_dot(const WorldResult& result);

}  // namespace lockstep::sim
