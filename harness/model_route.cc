// SPDX-License-Identifier: Apache-2.0
// Routes through a planned model: which blocks run, and the shapes between them.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "harness/model_plan.h"

namespace lockstep::harness {

PlannedRoute plan_route(const ModelPlan& plan, const Route& route) {
  PlannedRoute result;
  result.blocks_run.assign(plan.blocks.size(), false);
  const auto name_of = [&plan](std::int64_t block) -> const std::string& {
    return plan.blocks[static_cast<std::size_t>(block)].name;
  };
  const auto skipped = [&](std::int64_t block) {
    return std::find(route.skip.begin(), route.skip.end(), name_of(block)) != route.skip.end();
  };
  bool exits = false;
  for (const std::vector<std::int64_t>& stage : plan.stages) {
    std::vector<std::int64_t> runs;
    for (const std::int64_t block : stage) {
      if (!skipped(block)) {
        runs.push_back(block);
        result.blocks_run[static_cast<std::size_t>(block)] = true;
      }
      exits = exits || (!route.exit_after.empty() && name_of(block) == route.exit_after);
    }
    result.stages.push_back(std::move(runs));
    if (exits) {
      break;
    }
  }
  const std::vector<std::int64_t>& last = plan.stages.back();
  if (result.stages.size() < plan.stages.size() || last.size() == 1) {
    result.heads_run = {0};
    return result;
  }
  for (std::size_t head = 0; head < last.size(); ++head) {
    if (!skipped(last[head])) {
      result.heads_run.push_back(static_cast<std::int64_t>(head));
    }
  }
  return result;
}

std::optional<InputShape> plan_input(const ModelPlan& plan, const DataSpec& data) {
  for (const std::vector<std::int64_t>& stage : plan.stages) {
    for (const std::int64_t block : stage) {
      const BlockSpec& spec = plan.blocks[static_cast<std::size_t>(block)].spec;
      switch (spec.kind) {
        case BlockKind::kLinear:
          return InputShape{InputKind::kFeatures, {spec.in}, 0};
        case BlockKind::kBatchNorm:
        case BlockKind::kSyncBatchNorm:
        case BlockKind::kLayerNorm:
        case BlockKind::kScale:
          return InputShape{InputKind::kFeatures, {spec.out}, 0};
        case BlockKind::kEmbedding:
          return InputShape{InputKind::kTokens, {data.sequence_tokens}, spec.in};
        case BlockKind::kConv2d:
          return InputShape{InputKind::kImage, {spec.in, data.image_pixels, data.image_pixels}, 0};
        default:
          break;
      }
    }
  }
  return std::nullopt;
}

ShapeTrace trace_shapes(const ModelPlan& plan, const PlannedRoute& route, const InputShape& input) {
  ShapeTrace trace;
  SampleShape shape{input.sizes, input.kind == InputKind::kTokens};
  for (std::size_t i = 0; i < route.stages.size(); ++i) {
    std::vector<SampleShape> outputs;
    for (const std::int64_t index : route.stages[i]) {
      const PlannedBlock& block = plan.blocks[static_cast<std::size_t>(index)];
      const BlockOutput output = block_output(block.spec, shape);
      if (!output.error.empty()) {
        return {{}, block.name, output.error};
      }
      outputs.push_back(output.shape);
    }
    const bool heads = i + 1 == plan.stages.size() && plan.stages[i].size() > 1;
    if (heads) {
      for (const SampleShape& output : outputs) {
        trace.heads.push_back(output.sizes);
      }
      return trace;
    }
    for (std::size_t j = 1; j < outputs.size(); ++j) {
      if (outputs[j].sizes != outputs[0].sizes) {
        return {{},
                plan.blocks[static_cast<std::size_t>(route.stages[i][j])].name,
                fmt::format("yields {}, but is added to {}", to_string(outputs[j].sizes),
                            to_string(outputs[0].sizes))};
      }
    }
    if (!outputs.empty()) {
      shape = outputs[0];
    }
  }
  if (shape.tokens) {
    return {{},
            plan.blocks[static_cast<std::size_t>(plan.stages.back()[0])].name,
            "yields tokens, which no loss takes"};
  }
  trace.heads.push_back(shape.sizes);
  return trace;
}

}  // namespace lockstep::harness
