// SPDX-License-Identifier: Apache-2.0
// From a tree to a timing study, by the schema.
#pragma once

#include "harness/scenario/tree.h"
#include "harness/timing/study.h"

namespace lockstep::harness {

/// True if the file has a kind; scenarios have none.
bool is_timing_tree(const TreeNode& root);

/// Fills `value` from the root table; what the tree does not say keeps its default. `vary` is left
/// to others. Every unknown key, wrong type and value out of range becomes a finding.
void read_case(const TreeNode& root, TimingCase& value, Findings& findings);

/// Contradictions of one point, whose blocks are resolved first.
std::vector<CaseFinding> check_case(TimingCase& value);

/// All points of a file, and its claims held against its axes.
TimingStudy expand_study(const TreeNode& root, Findings& findings);

}  // namespace lockstep::harness
