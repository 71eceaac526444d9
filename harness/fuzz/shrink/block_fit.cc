// SPDX-License-Identifier: Apache-2.0
// Sizes of blocks that follow from what comes in.
#include <algorithm>
#include <optional>

#include "harness/fuzz/shrink/block_edits.h"
#include "harness/model_plan.h"

namespace lockstep::harness::fuzz {

namespace {

using Names = std::vector<std::string>;

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

void refit(Case& value) {
  if (value.model.kind == "graph") Fitter(value.model, value.data).run();
}

}  // namespace lockstep::harness::fuzz
