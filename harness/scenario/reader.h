// SPDX-License-Identifier: Apache-2.0
// From a tree to a case, by the schema.
#pragma once

#include "harness/case.h"
#include "harness/scenario/tree.h"

namespace lockstep::harness {

/// Fills `value` from the root table; what the tree does not say keeps its default. `vary` is left
/// to others. Every unknown key, wrong type and value out of range becomes a finding.
void read_case(const TreeNode& root, Case& value, Findings& findings);

}  // namespace lockstep::harness
