// SPDX-License-Identifier: Apache-2.0
// Texts, sizes and names of blocks after a change.
#include "harness/fuzz/shrink/block_edits.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "harness/model_plan.h"

namespace lockstep::harness::fuzz {

namespace {

using Names = std::vector<std::string>;
using Rename = std::function<std::string(const std::string&)>;  ///< empty: the name goes

std::string sizes_text(const BlockSpec& spec) {
  switch (spec.kind) {
    case BlockKind::kLinear:
    case BlockKind::kEmbedding:
      return fmt::format(" {} {}", spec.in, spec.out);
    case BlockKind::kConv2d:
      return fmt::format(" {} {} {}", spec.in, spec.out, spec.kernel);
    case BlockKind::kBatchNorm:
    case BlockKind::kSyncBatchNorm:
    case BlockKind::kLayerNorm:
    case BlockKind::kScale:
    case BlockKind::kOffset:
    case BlockKind::kGain:
      return fmt::format(" {}", spec.out);
    case BlockKind::kDropout:
      return fmt::format(" {}", spec.rate);
    case BlockKind::kSame:
      return " " + spec.same;
    default:
      return "";
  }
}

void rename_list(Names& names, const Rename& rename) {
  Names renamed;
  for (const std::string& name : names) {
    const std::string now = rename(name);
    if (!now.empty() && std::find(renamed.begin(), renamed.end(), now) == renamed.end()) {
      renamed.push_back(now);
    }
  }
  names = std::move(renamed);
}

bool has_action_on_blocks(const AtSpec& at) {
  return !at.skip.empty() || !at.mute.empty() || !at.without_loss.empty() || !at.freeze.empty() ||
         !at.unfreeze.empty() || !at.exit_after.empty();
}

/// Everything outside of the graph that names blocks or parameters. Entries that were about blocks
/// and are about none any more go.
void rename_everywhere(Case& value, const Rename& rename) {
  rename_list(value.model.frozen, rename);
  for (Names& pair : value.model.tied) rename_list(pair, rename);
  auto& tied = value.model.tied;
  tied.erase(
      std::remove_if(tied.begin(), tied.end(), [](const Names& pair) { return pair.size() != 2; }),
      tied.end());
  std::vector<AtSpec> kept;
  for (AtSpec& at : value.at) {
    const bool was_about_blocks = has_action_on_blocks(at);
    for (Names* list : {&at.skip, &at.mute, &at.without_loss, &at.freeze, &at.unfreeze}) {
      rename_list(*list, rename);
    }
    if (!at.exit_after.empty()) at.exit_after = rename(at.exit_after);
    if (!was_about_blocks || has_action_on_blocks(at)) kept.push_back(at);
  }
  value.at = std::move(kept);
  for (FaultSpec& fault : value.faults) {
    if (!fault.parameter.empty()) fault.parameter = rename(fault.parameter);
    const bool by_parameter = fault.by.find('.') != std::string::npos;
    if (by_parameter) fault.by = rename(fault.by);
    if (fault.by.empty()) fault.by = FaultSpec{}.by;
  }
}

/// Names that `plan` has stay; a parameter that is gone becomes the first of its kind.
Rename renaming_to(const ModelPlan& plan) {
  return [plan](const std::string& name) -> std::string {
    if (find_block(plan, name) || !find_slots(plan, name).empty()) return name;
    const std::size_t point = name.find('.');
    if (point == std::string::npos) return "";
    for (const ParameterSlot& slot : plan.slots) {
      if (slot.local == name.substr(point + 1)) return slot.name;
    }
    return plan.slots.empty() ? "" : plan.slots.front().name;
  };
}

/// A route that is all blocks in order is written as none.
void drop_default_route(ModelSpec& model) {
  ModelSpec without = model;
  without.forward.clear();
  if (stages_of(model) == stages_of(without)) model.forward.clear();
}

}  // namespace

std::string block_text(const BlockSpec& spec) {
  std::string text = to_string(spec.kind) + sizes_text(spec);
  if (!spec.bias) text += " no_bias";
  if (spec.sparse) text += " sparse";
  if (spec.checkpoint == Checkpointing::kPlain) text += " checkpoint";
  if (spec.checkpoint == Checkpointing::kReentrant) text += " checkpoint_reentrant";
  if (!spec.dtype.empty()) text += " " + spec.dtype;
  return text;
}

void change_blocks(ModelSpec& model, const std::function<void(BlockSpec&)>& change) {
  for (auto& [name, text] : model.blocks) {
    BlockSpec spec = parse_block(text).spec;
    change(spec);
    text = block_text(spec);
  }
}

void drop_blocks(Case& value, const std::set<std::string>& names) {
  ModelSpec& model = value.model;
  // The first block that shares a module which goes takes it over.
  std::map<std::string, std::string> heirs;
  for (auto& [name, text] : model.blocks) {
    BlockSpec spec = parse_block(text).spec;
    if (spec.kind != BlockKind::kSame) continue;
    if (heirs.count(spec.same) != 0) {
      text = "same " + heirs[spec.same];
    } else if (names.count(spec.same) != 0 && names.count(name) == 0) {
      heirs[spec.same] = name;
      if (const std::string* const original = text_of_block(model, spec.same)) text = *original;
    }
  }
  model.blocks.erase(
      std::remove_if(model.blocks.begin(), model.blocks.end(),
                     [&](const auto& block) { return names.count(block.first) != 0; }),
      model.blocks.end());
  std::vector<Names> stages;
  for (const Names& stage : model.forward) {
    Names left;
    for (const std::string& name : stage) {
      if (names.count(name) == 0) left.push_back(name);
    }
    if (!left.empty()) stages.push_back(std::move(left));
  }
  const bool had_route = !model.forward.empty();
  model.forward = std::move(stages);
  if (had_route && model.forward.empty()) model.blocks.clear();  // check_case refuses it
  drop_default_route(model);
  rename_everywhere(value, renaming_to(plan_model(model)));
  refit(value);
}

void replace_model(Case& value, ModelSpec model) {
  model.frozen = value.model.frozen;
  model.tied = value.model.tied;
  model.dtype = value.model.dtype;
  value.model = std::move(model);
  ModelSpec bare = value.model;  // without names that are yet to be changed
  bare.frozen.clear();
  bare.tied.clear();
  rename_everywhere(value, renaming_to(plan_model(bare)));
}

void make_mlp(Case& value) {
  const ModelSpec& graph = value.model;
  if (graph.kind != "graph" || !graph.forward.empty()) return;
  ModelSpec mlp;
  mlp.widths.clear();
  std::map<std::string, std::string> new_names;
  std::set<std::string> activations;  // between two layers each
  std::string activation;             // behind the last layer
  std::set<bool> biases;
  for (const auto& [name, text] : graph.blocks) {
    const BlockSpec spec = parse_block(text).spec;
    const std::size_t num_layers = biases.empty() ? 0 : mlp.widths.size() - 1;
    if (spec.kind != BlockKind::kLinear) {
      const bool fits = text == "relu" || text == "tanh" || text == "identity";
      if (!fits || !activation.empty() || num_layers == 0) return;
      new_names[name] = fmt::format("act{}", num_layers - 1);
      activation = text;
      continue;
    }
    BlockSpec plain;
    plain.kind = spec.kind;
    plain.in = spec.in;
    plain.out = spec.out;
    plain.bias = spec.bias;
    if (block_text(plain) != block_text(spec)) return;
    if (num_layers == 0) {
      mlp.widths.push_back(spec.in);
    } else {
      activations.insert(activation.empty() ? "identity" : activation);
      activation.clear();
    }
    mlp.widths.push_back(spec.out);
    biases.insert(spec.bias);
    new_names[name] = fmt::format("layer{}", num_layers);
  }
  if (!activation.empty() || activations.size() > 1 || biases.size() != 1) return;
  mlp.bias = *biases.begin();
  if (!activations.empty()) mlp.activation = *activations.begin();
  mlp.frozen = graph.frozen;
  mlp.tied = graph.tied;
  mlp.dtype = graph.dtype;
  value.model = std::move(mlp);
  rename_everywhere(value, [&](const std::string& name) {
    const std::size_t point = std::min(name.find('.'), name.size());
    const auto found = new_names.find(name.substr(0, point));
    return found == new_names.end() ? std::string() : found->second + name.substr(point);
  });
}

}  // namespace lockstep::harness::fuzz
