// SPDX-License-Identifier: Apache-2.0
// Texts, sizes and names of blocks after a change.
#include "harness/fuzz/block_edits.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

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

std::string* text_of_block(ModelSpec& model, const std::string& name) {
  for (auto& [block, text] : model.blocks) {
    if (block == name) return &text;
  }
  return nullptr;
}

std::vector<Names> stages_of(const ModelSpec& model) {
  if (!model.forward.empty()) return model.forward;
  std::vector<Names> stages;
  for (const auto& [name, text] : model.blocks) stages.push_back({name});
  return stages;
}

/// A route that is all blocks in order is written as none.
void drop_default_route(ModelSpec& model) {
  ModelSpec without = model;
  without.forward.clear();
  if (stages_of(model) == stages_of(without)) model.forward.clear();
}

bool keeps_width(const BlockSpec& spec) {
  switch (spec.kind) {
    case BlockKind::kLinear:
    case BlockKind::kEmbedding:
    case BlockKind::kConv2d:
    case BlockKind::kOffset:
    case BlockKind::kFlatten:
      return false;
    default:
      return true;
  }
}

/// The sizes that `spec` has to have for this input.
void fit(BlockSpec& spec, const SampleShape& input) {
  if (input.sizes.empty()) return;
  switch (spec.kind) {
    case BlockKind::kLinear:
      spec.in = input.sizes.back();
      break;
    case BlockKind::kLayerNorm:
    case BlockKind::kScale:
    case BlockKind::kGain:
      spec.out = input.sizes.back();
      break;
    case BlockKind::kBatchNorm:
    case BlockKind::kSyncBatchNorm:
      spec.out = input.sizes.front();
      break;
    case BlockKind::kConv2d:
      spec.in = input.sizes.front();
      spec.kernel = std::min(spec.kernel, input.sizes.back());
      break;
    default:
      break;
  }
}

/// Has `spec` make this width, if its kind can choose.
void make_width(BlockSpec& spec, std::int64_t width) {
  if (spec.kind == BlockKind::kLinear) spec.out = is_complex(spec) ? width / 2 : width;
  if (spec.kind == BlockKind::kOffset || spec.kind == BlockKind::kEmbedding) spec.out = width;
}

class Fitter {
 public:
  Fitter(ModelSpec& model, const DataSpec& data) : model_(model), data_(data) {}

  void run() {
    const std::optional<InputShape> input = plan_input(plan_model(model_), data_);
    if (!input) return;
    SampleShape shape{input->sizes, input->kind == InputKind::kTokens};
    const std::vector<Names> stages = stages_of(model_);
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const bool added_up = stages[i].size() > 1 && i + 1 < stages.size();
      const std::optional<SampleShape> output = fit_stage(stages[i], shape, added_up);
      if (!output) return;
      shape = *output;
    }
  }

 private:
  /// The block whose module `name` is.
  std::string owner(std::string name) {
    for (std::size_t i = 0; i < model_.blocks.size(); ++i) {
      const std::string* const text = text_of_block(model_, name);
      if (text == nullptr) break;
      const BlockSpec spec = parse_block(*text).spec;
      if (spec.kind != BlockKind::kSame) break;
      name = spec.same;
    }
    return name;
  }

  std::optional<SampleShape> fit_block(const std::string& name, const SampleShape& input,
                                       std::optional<std::int64_t> width) {
    std::string* const text = text_of_block(model_, owner(name));
    if (text == nullptr || !parse_block(*text).error.empty()) return std::nullopt;
    BlockSpec spec = parse_block(*text).spec;
    if (spec.kind == BlockKind::kSame) return std::nullopt;
    fit(spec, input);
    if (width) make_width(spec, *width);
    *text = block_text(spec);
    BlockOutput output = block_output(spec, input);
    if (!output.error.empty()) return std::nullopt;
    return output.shape;
  }

  bool stage_keeps_width(const Names& names) {
    return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      const std::string* const text = text_of_block(model_, owner(name));
      return text != nullptr && keeps_width(parse_block(*text).spec);
    });
  }

  std::optional<SampleShape> fit_stage(const Names& names, const SampleShape& input,
                                       bool added_up) {
    std::optional<std::int64_t> width;
    if (added_up && stage_keeps_width(names)) width = input.sizes.back();
    std::optional<SampleShape> first;
    for (const std::string& name : names) {
      const std::optional<SampleShape> output = fit_block(name, input, width);
      if (!output) return std::nullopt;
      if (!first) first = output;
      if (added_up && !first->sizes.empty()) width = first->sizes.back();
    }
    return first;
  }

  ModelSpec& model_;
  const DataSpec& data_;
};

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

void refit(Case& value) {
  if (value.model.kind == "graph") Fitter(value.model, value.data).run();
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
  if (graph.kind != "graph" || graph.blocks.size() % 2 == 0 || !graph.forward.empty()) return;
  ModelSpec mlp;
  mlp.widths.clear();
  std::map<std::string, std::string> new_names;
  for (std::size_t i = 0; i < graph.blocks.size(); ++i) {
    const auto& [name, text] = graph.blocks[i];
    const BlockSpec spec = parse_block(text).spec;
    BlockSpec plain;
    plain.kind = spec.kind;
    if (i % 2 == 0) {
      plain.in = spec.in;
      plain.out = spec.out;
      plain.bias = i == 0 ? spec.bias : mlp.bias;
      mlp.bias = spec.bias;
      if (mlp.widths.empty()) mlp.widths.push_back(spec.in);
      mlp.widths.push_back(spec.out);
    } else if (i == 1) {
      mlp.activation = to_string(spec.kind);
    }
    const bool fits = i % 2 == 0 ? spec.kind == BlockKind::kLinear
                                 : spec.kind != BlockKind::kSame && mlp.activation == text;
    if (!fits || block_text(plain) != block_text(spec)) return;
    new_names[name] = fmt::format("{}{}", i % 2 == 0 ? "layer" : "act", i / 2);
  }
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
