// SPDX-License-Identifier: Apache-2.0
// From the text of a block to a layer.
#include "harness/timing/blocks.h"

#include <fmt/format.h>

#include "harness/block_spec.h"
#include "harness/scenario/text.h"

namespace lockstep::harness {

using sim::timing::LayerSetup;
using sim::timing::Setup;

namespace {

/// Sets what follows from the block; the message says why that cannot be.
std::string resolve(LayerSetup& layer, bool has_rate) {
  const BlockParse parsed = parse_block(layer.block);
  if (!parsed.error.empty()) return parsed.error;
  const BlockSpec& spec = parsed.spec;
  if (spec.kind != BlockKind::kLinear || spec.checkpoint != Checkpointing::kNone ||
      !spec.dtype.empty()) {
    return fmt::format(
        "'{}' is not a plain linear block; expected \"linear IN OUT\" or parameters "
        "and times",
        layer.block);
  }
  if (!layer.parameters.empty() || layer.forward_gflop_per_sample > 0) {
    return "the layer has a block, from which its parameters and flops follow; expected no others";
  }
  for (const TensorSpec& parameter : block_parameters(spec)) {
    layer.parameters.push_back(numel_of(parameter.sizes));
  }
  const bool has_time = layer.forward_us > 0 || layer.forward_us_per_sample > 0;
  if (has_rate && !has_time) {
    // A multiplication and an addition per weight.
    layer.forward_gflop_per_sample =
        2e-9 * static_cast<double>(spec.in) * static_cast<double>(spec.out);
  }
  return {};
}

}  // namespace

std::vector<CaseFinding> resolve_blocks(Setup& setup) {
  std::vector<CaseFinding> findings;
  for (std::size_t i = 0; i < setup.layers.size(); ++i) {
    if (setup.layers[i].block.empty()) continue;
    const std::string trouble = resolve(setup.layers[i], setup.compute.gflop_per_s > 0);
    if (!trouble.empty()) findings.push_back({{fmt::format("layer.{}.block", i)}, trouble});
  }
  return findings;
}

std::string layers_text(const Setup& setup) {
  std::string text;
  for (const LayerSetup& layer : setup.layers) {
    text += "[[layer]]\n";
    const auto add = [&](const char* key, const std::string& value) {
      text += fmt::format("{} = {}\n", key, value);
    };
    if (!layer.name.empty()) add("name", value_text(layer.name));
    if (!layer.block.empty()) add("block", value_text(layer.block));
    if (layer.count != 1) add("count", value_text(layer.count));
    if (layer.block.empty()) add("parameters", value_text(layer.parameters));
    add("forward_us", value_text(layer.forward_us));
    if (layer.forward_us_per_sample > 0) {
      add("forward_us_per_sample", value_text(layer.forward_us_per_sample));
    }
    if (layer.block.empty() && layer.forward_gflop_per_sample > 0) {
      add("forward_gflop_per_sample", value_text(layer.forward_gflop_per_sample));
    }
    if (layer.backward_us) add("backward_us", value_text(*layer.backward_us));
    if (layer.backward_us_per_sample) {
      add("backward_us_per_sample", value_text(*layer.backward_us_per_sample));
    }
  }
  return text;
}

}  // namespace lockstep::harness
