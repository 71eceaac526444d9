// SPDX-License-Identifier: Apache-2.0
// Changes of a model after which the rest of the case still fits it.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/block_spec.h"
#include "harness/case.h"

namespace lockstep::harness::fuzz {

// block_edits.cc

/// The text that parse_block reads as `spec`.
std::string block_text(const BlockSpec& spec);

/// Takes blocks out of a graph; what named them names nothing more, or goes. A module that another
/// block shares stays with that block.
void drop_blocks(Case& value, const std::set<std::string>& names);

/// Puts `model` in the place of the case's own. Parameters that are gone stand for the first of the
/// same kind ("weight"); blocks that are gone are named no more.
void replace_model(Case& value, ModelSpec model);

/// The same model as an mlp, where it is one; else unchanged.
void make_mlp(Case& value);

/// Changes every block of a graph.
void change_blocks(ModelSpec& model, const std::function<void(BlockSpec&)>& change);

// block_fit.cc

/// Of a graph; null where there is no such block.
std::string* text_of_block(ModelSpec& model, const std::string& name);

/// The stages of a graph, also where all blocks in order are left out.
std::vector<std::vector<std::string>> stages_of(const ModelSpec& model);

/// Gives every block of a graph the sizes of what it gets; blocks that are added up make the same.
/// What one of them makes otherwise, and what the first takes, stays. A model that cannot be mended
/// so is left as it is, for check_case to refuse.
void refit(Case& value);

}  // namespace lockstep::harness::fuzz
