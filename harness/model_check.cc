// SPDX-License-Identifier: Apache-2.0
// Checks of model descriptions and routes, and what can be said of a model without building it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/check.h"
#include "harness/model.h"
#include "harness/model_plan.h"

namespace lockstep::harness {
namespace {

constexpr std::int64_t kMaxSamples = 1 << 20;
constexpr std::int64_t kMaxTokens = 1 << 12;
constexpr std::int64_t kMaxPixels = 1 << 10;
constexpr std::int64_t kMaxDatasetNumel = 1 << 26;

ModelPlan sound_plan(const ModelSpec& model) {
  ModelPlan plan = plan_model(model);
  LOCKSTEP_USAGE(plan.findings.empty(), "{}: {}", plan.findings[0].key, plan.findings[0].message);
  return plan;
}

std::string key_of(const ModelSpec& model, const std::string& block) {
  return model.kind == "mlp" ? "model.widths" : "model.blocks." + block;
}

void check_range(const char* key, std::int64_t value, std::int64_t limit,
                 std::vector<ModelFinding>& findings) {
  if (value < 1 || value > limit) {
    findings.push_back({key, fmt::format("{} is not from 1 to {}", value, limit)});
  }
}

void check_data(const DataSpec& data, std::vector<ModelFinding>& findings) {
  if (data.kind != "regression" && data.kind != "classification") {
    findings.push_back({"data.kind", fmt::format("\"{}\" is neither \"regression\" nor "
                                                 "\"classification\"",
                                                 data.kind)});
  }
  check_range("data.samples", data.samples, kMaxSamples, findings);
  check_range("data.sequence_tokens", data.sequence_tokens, kMaxTokens, findings);
  check_range("data.image_pixels", data.image_pixels, kMaxPixels, findings);
}

void check_exact(const ModelSpec& model, const DataSpec& data, const ModelPlan& plan,
                 std::vector<ModelFinding>& findings) {
  if (!data.exact) {
    return;
  }
  if (data.kind == "classification") {
    findings.push_back({"data.exact",
                        "cross entropy takes logarithms, which are never exact; "
                        "use kind = \"regression\""});
  }
  for (const std::vector<std::int64_t>& stage : plan.stages) {
    for (const std::int64_t index : stage) {
      const PlannedBlock& block = plan.blocks[static_cast<std::size_t>(index)];
      if (can_be_exact(block.spec)) {
        continue;
      }
      if (model.kind == "mlp") {
        findings.push_back({"model.activation",
                            "tanh is never exact; use \"relu\" or "
                            "\"identity\", or leave out data.exact"});
        return;
      }
      findings.push_back(
          {key_of(model, block.name),
           block.spec.kind == BlockKind::kDropout
               ? std::string(
                     "dropout is exact only where 1 / (1 - rate) is a power of two, such as "
                     "0.5")
               : fmt::format("{} is never exact; leave it or data.exact out",
                             to_string(block.spec.kind))});
    }
  }
}

/// The data needs no gradient, so that none would reach what a re-entrant checkpoint computes
/// again.
void check_checkpoints(const ModelSpec& model, const ModelPlan& plan,
                       std::vector<ModelFinding>& findings) {
  for (const std::int64_t index : plan.stages.front()) {
    const PlannedBlock& block = plan.blocks[static_cast<std::size_t>(index)];
    if (block.spec.checkpoint == Checkpointing::kReentrant) {
      findings.push_back({key_of(model, block.name),
                          "a re-entrant checkpoint needs an input that requires a gradient, and "
                          "this block is given the data; write \"checkpoint\", or put a block "
                          "with parameters before it"});
    }
  }
}

/// Precondition: `plan` and `data` have no findings.
void check_shapes(const ModelSpec& model, const DataSpec& data, const ModelPlan& plan,
                  std::vector<ModelFinding>& findings) {
  const std::optional<InputShape> input = plan_input(plan, data);
  if (!input) {
    findings.push_back({"model.forward", "no stage names a block with a size, such as linear"});
    return;
  }
  const ShapeTrace trace = trace_shapes(plan, plan_route(plan, {}), *input);
  if (!trace.error.empty()) {
    findings.push_back({key_of(model, trace.block), trace.error});
    return;
  }
  std::int64_t sample_numel = numel_of(input->sizes);
  for (const Sizes& head : trace.heads) {
    sample_numel += numel_of(head);
    if (data.kind == "classification" && (head.size() > 2 || head.back() < 2)) {
      findings.push_back(
          {"data.kind", fmt::format("classification needs heads that yield [classes] or [tokens, "
                                    "classes] with at least 2 classes, not {}",
                                    to_string(head))});
    }
  }
  if (sample_numel > kMaxDatasetNumel / data.samples) {
    findings.push_back(
        {"data.samples", fmt::format("{} samples of {} numbers each are more than {} in all",
                                     data.samples, sample_numel, kMaxDatasetNumel)});
  }
}

bool uses_kind(const ModelSpec& model, BlockKind kind) {
  const ModelPlan plan = sound_plan(model);
  for (const std::vector<std::int64_t>& stage : plan.stages) {
    for (const std::int64_t index : stage) {
      const BlockSpec& spec = plan.blocks[static_cast<std::size_t>(index)].spec;
      // A dropout that drops nothing draws nothing.
      if (spec.kind == kind && (kind != BlockKind::kDropout || spec.rate > 0.0)) {
        return true;
      }
    }
  }
  return false;
}

/// The first registered name of each tensor, by tensor number.
std::vector<std::string> first_names(const ModelPlan& plan) {
  std::vector<std::string> names(plan.slots.size());
  for (const ParameterSlot& slot : plan.slots) {
    std::string& name = names[static_cast<std::size_t>(slot.tensor)];
    if (name.empty()) {
      name = slot.name;
    }
  }
  return names;
}

/// First names of the tensors in `slots`, each once.
std::vector<std::string> names_of(const ModelPlan& plan, const std::vector<std::int64_t>& slots) {
  const std::vector<std::string> first = first_names(plan);
  std::vector<std::string> names;
  for (const std::int64_t index : slots) {
    const ParameterSlot& slot = plan.slots[static_cast<std::size_t>(index)];
    const std::string& name = first[static_cast<std::size_t>(slot.tensor)];
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  }
  return names;
}

std::vector<std::string> parameters_where(const ModelSpec& model, bool (*fits)(const BlockSpec&)) {
  const ModelPlan plan = sound_plan(model);
  std::vector<std::int64_t> slots;
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    if (fits(plan.blocks[static_cast<std::size_t>(plan.slots[i].block)].spec)) {
      slots.push_back(static_cast<std::int64_t>(i));
    }
  }
  return names_of(plan, slots);
}

/// Where a route's names are wrong; shapes are looked at only if there is nothing.
std::vector<ModelFinding> check_route_names(const ModelPlan& plan, const Route& route) {
  std::vector<ModelFinding> findings;
  const auto stage_of = [&plan](const std::string& name) {
    const std::optional<std::int64_t> block = find_block(plan, name);
    for (std::size_t i = 0; i < plan.stages.size(); ++i) {
      const auto& stage = plan.stages[i];
      if (block && std::find(stage.begin(), stage.end(), *block) != stage.end()) {
        return static_cast<std::int64_t>(i);
      }
    }
    return std::int64_t{-1};
  };
  std::vector<std::string> used;
  for (const std::vector<std::int64_t>& stage : plan.stages) {
    for (const std::int64_t block : stage) {
      used.push_back(plan.blocks[static_cast<std::size_t>(block)].name);
    }
  }
  for (const std::string& name : route.skip) {
    if (stage_of(name) < 0) {
      findings.push_back({"skip", fmt::format("no stage names a block \"{}\"; they name {}", name,
                                              fmt::join(used, ", "))});
    }
  }
  if (route.exit_after.empty()) {
    return findings;
  }
  const std::int64_t stage = stage_of(route.exit_after);
  if (stage < 0) {
    findings.push_back({"exit_after", fmt::format("no stage names a block \"{}\"; they name {}",
                                                  route.exit_after, fmt::join(used, ", "))});
  } else if (stage + 1 == static_cast<std::int64_t>(plan.stages.size())) {
    findings.push_back({"exit_after", fmt::format("\"{}\" is in the last stage, so that nothing "
                                                  "would be left out",
                                                  route.exit_after)});
  }
  return findings;
}

}  // namespace

std::vector<ModelFinding> check_model(const ModelSpec& model, const DataSpec& data) {
  const ModelPlan plan = plan_model(model);
  std::vector<ModelFinding> findings = plan.findings;
  check_data(data, findings);
  if (findings.empty()) {
    check_shapes(model, data, plan, findings);
    check_checkpoints(model, plan, findings);
    check_exact(model, data, plan, findings);
  }
  return findings;
}

std::vector<ModelFinding> check_route(const ModelSpec& model, const DataSpec& data,
                                      const Route& route) {
  const ModelPlan plan = sound_plan(model);
  std::vector<ModelFinding> findings = check_route_names(plan, route);
  if (!findings.empty()) {
    return findings;
  }
  const std::string key = route.exit_after.empty() ? "skip" : "exit_after";
  const PlannedRoute planned = plan_route(plan, route);
  if (planned.heads_run.empty()) {
    return {{key, "leaves out every head, so that there is no loss; leave one in, or use detach"}};
  }
  const InputShape input = input_shape(model, data);
  const ShapeTrace trace = trace_shapes(plan, planned, input);
  if (!trace.error.empty()) {
    return {{key, fmt::format("with blocks left out, \"{}\" does not fit: {}", trace.block,
                              trace.error)}};
  }
  const std::vector<Sizes> shapes = output_shapes(model, data);
  for (std::size_t i = 0; i < planned.heads_run.size(); ++i) {
    const Sizes& wanted = shapes[static_cast<std::size_t>(planned.heads_run[i])];
    if (trace.heads[i] != wanted) {
      findings.push_back(
          {key, fmt::format("the output would be {}, but the targets of head {} are {}; make the "
                            "widths equal or give the model several heads",
                            to_string(trace.heads[i]), planned.heads_run[i], to_string(wanted))});
    }
  }
  return findings;
}

std::vector<std::string> block_names(const ModelSpec& model) {
  std::vector<std::string> names;
  for (const PlannedBlock& block : sound_plan(model).blocks) {
    names.push_back(block.name);
  }
  return names;
}

std::vector<std::string> head_names(const ModelSpec& model) {
  const ModelPlan plan = sound_plan(model);
  std::vector<std::string> names;
  for (const std::int64_t block : plan.stages.back()) {
    names.push_back(plan.blocks[static_cast<std::size_t>(block)].name);
  }
  return names;
}

std::vector<std::string> parameter_names(const ModelSpec& model) {
  const ModelPlan plan = sound_plan(model);
  std::vector<std::int64_t> all;
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    all.push_back(static_cast<std::int64_t>(i));
  }
  return names_of(plan, all);
}

std::vector<std::string> buffer_names(const ModelSpec& model) {
  const ModelPlan plan = sound_plan(model);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < plan.blocks.size(); ++i) {
    const PlannedBlock& block = plan.blocks[i];
    if (block.owner == static_cast<std::int64_t>(i)) {
      for (const TensorSpec& buffer : block_buffers(block.spec)) {
        names.push_back(block.name + "." + buffer.name);
      }
    }
  }
  return names;
}

std::vector<std::string> parameters_of(const ModelSpec& model, const std::string& name) {
  const ModelPlan plan = sound_plan(model);
  return names_of(plan, find_slots(plan, name));
}

InputShape input_shape(const ModelSpec& model, const DataSpec& data) {
  const std::optional<InputShape> input = plan_input(sound_plan(model), data);
  LOCKSTEP_USAGE(input.has_value(), "model.forward: no stage names a block with a size");
  return *input;
}

std::vector<std::vector<std::int64_t>> output_shapes(const ModelSpec& model, const DataSpec& data) {
  const ModelPlan plan = sound_plan(model);
  const ShapeTrace trace = trace_shapes(plan, plan_route(plan, {}), input_shape(model, data));
  LOCKSTEP_USAGE(trace.error.empty(), "{}: {}", key_of(model, trace.block), trace.error);
  return trace.heads;
}

bool uses_dropout(const ModelSpec& model) { return uses_kind(model, BlockKind::kDropout); }

bool uses_batch_norm(const ModelSpec& model) { return uses_kind(model, BlockKind::kBatchNorm); }

bool uses_sync_batch_norm(const ModelSpec& model) {
  return uses_kind(model, BlockKind::kSyncBatchNorm);
}

bool uses_all_to_all(const ModelSpec& model) { return uses_kind(model, BlockKind::kAllToAll); }

std::vector<std::string> sparse_parameters(const ModelSpec& model) {
  return parameters_where(model, [](const BlockSpec& spec) { return spec.sparse; });
}

std::vector<std::string> complex_parameters(const ModelSpec& model) {
  return parameters_where(model, [](const BlockSpec& spec) { return is_complex(spec); });
}

}  // namespace lockstep::harness
