// SPDX-License-Identifier: Apache-2.0
// Resolves the names of a model description: blocks, stages, shared modules, ties, routes.
#include "harness/model_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/check.h"

namespace lockstep::harness {
namespace {

constexpr std::int64_t kMaxParameterNumel = 1 << 26;
constexpr std::int64_t kManyNumel = std::int64_t{1} << 60;

/// Collects a plan from a description, one table after the other.
class Planner {
 public:
  explicit Planner(const ModelSpec& model) : model_(model) {}

  ModelPlan run() {
    if (model_.kind == "mlp") {
      plan_mlp();
    } else if (model_.kind == "graph") {
      plan_blocks();
      plan_stages();
    } else {
      found("model.kind", fmt::format("\"{}\" is neither \"mlp\" nor \"graph\"", model_.kind));
    }
    if (model_.dtype != "float32" && model_.dtype != "float64") {
      found("model.dtype",
            fmt::format("\"{}\" is neither \"float32\" nor \"float64\"", model_.dtype));
    }
    plan_slots();
    for (const std::vector<std::string>& pair : model_.tied) {
      tie(pair);
    }
    plan_frozen();
    return std::move(plan_);
  }

 private:
  void found(std::string key, std::string message) {
    plan_.findings.push_back({std::move(key), std::move(message)});
  }

  /// "; there are a, b", or what to do where there are none.
  std::string known_blocks() const {
    std::vector<std::string> names;
    for (const PlannedBlock& block : plan_.blocks) {
      names.push_back(block.name);
    }
    return names.empty() ? "; the model has no blocks yet, expected some in model.blocks"
                         : fmt::format("; there are {}", fmt::join(names, ", "));
  }

  void add_block(const std::string& name, const BlockSpec& spec) {
    plan_.blocks.push_back({name, spec, static_cast<std::int64_t>(plan_.blocks.size())});
  }

  void plan_mlp() {
    if (!model_.blocks.empty() || !model_.forward.empty()) {
      found("model.kind", "an mlp is described by widths; write kind = \"graph\" to use blocks");
    }
    if (model_.widths.size() < 2) {
      found("model.widths", "needs at least an input and an output width");
      return;
    }
    const BlockParse activation = parse_block(model_.activation);
    const bool known = activation.error.empty() && (activation.spec.kind == BlockKind::kRelu ||
                                                    activation.spec.kind == BlockKind::kTanh ||
                                                    activation.spec.kind == BlockKind::kIdentity);
    if (!known) {
      found("model.activation",
            fmt::format("\"{}\" is none of \"relu\", \"tanh\", \"identity\"", model_.activation));
      return;
    }
    for (std::size_t layer = 0; layer + 1 < model_.widths.size(); ++layer) {
      if (layer > 0) {
        add_block(fmt::format("act{}", layer - 1), activation.spec);
      }
      const BlockParse linear =
          parse_block(fmt::format("linear {} {}{}", model_.widths[layer], model_.widths[layer + 1],
                                  model_.bias ? "" : " no_bias"));
      if (!linear.error.empty()) {
        found("model.widths", linear.error);
      } else if (linear.spec.out == 0) {
        found("model.widths",
              "\"0\" is not a width; a layer without outputs is a block of a graph");
      }
      add_block(fmt::format("layer{}", layer), linear.spec);
    }
    use_all_blocks();
  }

  void use_all_blocks() {
    for (std::size_t i = 0; i < plan_.blocks.size(); ++i) {
      plan_.stages.push_back({static_cast<std::int64_t>(i)});
    }
  }

  void plan_blocks() {
    if (model_.blocks.empty()) {
      found("model.blocks", "a graph needs at least one block");
    }
    for (const auto& [name, text] : model_.blocks) {
      const std::string key = "model.blocks." + name;
      const bool valid_name =
          !name.empty() && std::all_of(name.begin(), name.end(), [](char letter) {
            return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                   (letter >= '0' && letter <= '9') || letter == '_';
          });
      if (!valid_name) {
        found(key, "a block's name is made of letters, digits and underscores");
      }
      if (find_block(plan_, name)) {
        found(key, "there is a block of this name already");
      }
      BlockParse parsed = parse_block(text);
      if (!parsed.error.empty()) {
        found(key, parsed.error);
      }
      if (!parsed.spec.dtype.empty() && model_.dtype != "float32") {
        found(key, fmt::format("\"{}\" stands beside float32, and model.dtype is \"{}\"; leave one "
                               "of them out",
                               parsed.spec.dtype, model_.dtype));
      }
      if (parsed.spec.kind != BlockKind::kSame) {
        add_block(name, parsed.spec);
        continue;
      }
      const auto original = find_block(plan_, parsed.spec.same);
      if (original) {
        const PlannedBlock& block = plan_.blocks[static_cast<std::size_t>(*original)];
        plan_.blocks.push_back({name, block.spec, block.owner});
      } else {
        found(key, fmt::format("\"same {}\" must name an earlier block{}", parsed.spec.same,
                               known_blocks()));
        add_block(name, BlockSpec{});
      }
    }
  }

  void plan_stages() {
    if (model_.forward.empty()) {
      use_all_blocks();
      return;
    }
    std::set<std::string> used;
    for (const std::vector<std::string>& names : model_.forward) {
      std::vector<std::int64_t> stage;
      for (const std::string& name : names) {
        const auto block = find_block(plan_, name);
        if (!block) {
          found("model.forward", fmt::format("there is no block \"{}\"{}", name, known_blocks()));
        } else if (!used.insert(name).second) {
          found("model.forward",
                fmt::format("\"{0}\" is named twice; give the second use a block of its own, "
                            "\"same {0}\"",
                            name));
        } else {
          stage.push_back(*block);
        }
      }
      if (names.empty()) {
        found("model.forward", "a stage needs at least one block");
      }
      plan_.stages.push_back(std::move(stage));
    }
  }

  void plan_slots() {
    std::int64_t total_numel = 0;
    for (std::size_t i = 0; i < plan_.blocks.size(); ++i) {
      const PlannedBlock& block = plan_.blocks[i];
      for (const TensorSpec& parameter : block_parameters(block.spec)) {
        ParameterSlot slot;
        slot.local = parameter.name;
        slot.name = block.name + "." + parameter.name;
        slot.block = static_cast<std::int64_t>(i);
        slot.sizes = parameter.sizes;
        slot.tensor = static_cast<std::int64_t>(plan_.slots.size());
        if (block.owner != slot.block) {
          const std::string original =
              plan_.blocks[static_cast<std::size_t>(block.owner)].name + "." + parameter.name;
          slot.tensor = find_slots(plan_, original).at(0);
        } else {
          // Of many blocks the sum would not fit.
          total_numel = std::min(total_numel + numel_of(parameter.sizes), kManyNumel);
        }
        plan_.slots.push_back(std::move(slot));
      }
    }
    if (plan_.findings.empty() && plan_.slots.empty()) {
      found("model.blocks", "the model has no parameters; add a linear block, for example");
    }
    if (total_numel > kMaxParameterNumel) {
      found(model_.kind == "mlp" ? "model.widths" : "model.blocks",
            fmt::format("{} parameter elements are more than the {} that a case may have",
                        total_numel, kMaxParameterNumel));
    }
  }

  /// "; there are a.weight, a.bias", or that there are none.
  std::string known_parameters() const {
    std::vector<std::string> names;
    for (const ParameterSlot& slot : plan_.slots) {
      names.push_back(slot.name);
    }
    return names.empty() ? "; the model has no parameters"
                         : fmt::format("; there are {}", fmt::join(names, ", "));
  }

  /// Every slot that holds the second parameter's tensor gets the first's instead.
  void tie(const std::vector<std::string>& pair) {
    if (pair.size() != 2) {
      found("model.tied", fmt::format("a tie names two parameters, not {}", pair.size()));
      return;
    }
    std::int64_t tensors[2] = {0, 0};
    Sizes sizes[2];
    std::string dtypes[2];
    for (std::size_t i = 0; i < 2; ++i) {
      const std::vector<std::int64_t> slots = find_slots(plan_, pair[i]);
      if (slots.size() != 1 || plan_.slots[static_cast<std::size_t>(slots[0])].name != pair[i]) {
        found("model.tied",
              fmt::format("there is no parameter \"{}\"{}", pair[i], known_parameters()));
        return;
      }
      const ParameterSlot& slot = plan_.slots[static_cast<std::size_t>(slots[0])];
      tensors[i] = slot.tensor;
      sizes[i] = slot.sizes;
      const std::string& own = plan_.blocks[static_cast<std::size_t>(slot.block)].spec.dtype;
      dtypes[i] = own.empty() ? model_.dtype : own;
    }
    if (tensors[0] == tensors[1]) {
      found("model.tied",
            fmt::format("\"{}\" and \"{}\" are one tensor already", pair[0], pair[1]));
      return;
    }
    if (sizes[0] != sizes[1]) {
      found("model.tied",
            fmt::format("\"{}\" is {} and \"{}\" is {}; tied parameters have one shape", pair[0],
                        to_string(sizes[0]), pair[1], to_string(sizes[1])));
      return;
    }
    if (dtypes[0] != dtypes[1]) {
      found("model.tied",
            fmt::format("\"{}\" is {} and \"{}\" is {}; tied parameters have one dtype", pair[0],
                        dtypes[0], pair[1], dtypes[1]));
      return;
    }
    for (ParameterSlot& slot : plan_.slots) {
      if (slot.tensor == tensors[1]) {
        slot.tensor = tensors[0];
      }
    }
  }

  void plan_frozen() {
    plan_.frozen.assign(plan_.slots.size(), false);
    for (const std::string& name : model_.frozen) {
      const std::vector<std::int64_t> slots = find_slots(plan_, name);
      if (slots.empty()) {
        found("model.frozen", find_block(plan_, name)
                                  ? fmt::format("the block \"{}\" has no parameters", name)
                                  : fmt::format("there is no parameter or block \"{}\"{}", name,
                                                known_parameters()));
      }
      for (const std::int64_t slot : slots) {
        const std::int64_t tensor = plan_.slots[static_cast<std::size_t>(slot)].tensor;
        plan_.frozen[static_cast<std::size_t>(tensor)] = true;
      }
    }
  }

  const ModelSpec& model_;
  ModelPlan plan_;
};

}  // namespace

ModelPlan plan_model(const ModelSpec& model) { return Planner(model).run(); }

std::optional<std::int64_t> find_block(const ModelPlan& plan, const std::string& name) {
  for (std::size_t i = 0; i < plan.blocks.size(); ++i) {
    if (plan.blocks[i].name == name) {
      return static_cast<std::int64_t>(i);
    }
  }
  return std::nullopt;
}

std::vector<std::int64_t> find_slots(const ModelPlan& plan, const std::string& name) {
  std::vector<std::int64_t> found;
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    const ParameterSlot& slot = plan.slots[i];
    if (slot.name == name || plan.blocks[static_cast<std::size_t>(slot.block)].name == name) {
      found.push_back(static_cast<std::int64_t>(i));
    }
  }
  return found;
}

}  // namespace lockstep::harness
