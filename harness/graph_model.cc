// SPDX-License-Identifier: Apache-2.0
// Builds the module of a plan and runs it along routes.
#include "harness/graph_model.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <map>
#include <utility>

#include "core/check.h"
#include "harness/block_module.h"
#include "harness/model_plan.h"

namespace lockstep::harness {
namespace {

/// A route with modules in place of names: nothing is looked up while a forward runs.
struct CompiledRoute {
  Route route;
  std::vector<std::vector<BlockModule*>> stages;
  bool ends_in_heads = false;  ///< the last of `stages` holds separate heads
  std::vector<std::int64_t> heads_run;
  std::vector<bool> blocks_run;
};

at::ScalarType dtype_of(const std::string& name) {
  return name == "float64" ? at::kDouble : at::kFloat;
}

/// The stage's outputs added up; its input if there are none.
at::Tensor run_stage(const std::vector<BlockModule*>& stage, const at::Tensor& input) {
  if (stage.empty()) {
    return input;
  }
  at::Tensor output = stage[0]->forward(input);
  for (std::size_t i = 1; i < stage.size(); ++i) {
    output = output + stage[i]->forward(input);
  }
  return output;
}

}  // namespace

struct GraphModel::Impl {
  ModelPlan plan;
  std::vector<std::shared_ptr<BlockModule>> modules;  // by block; shared ones several times
  // Routes are few and recur; the full one comes first. unique_ptr: `current` stays valid.
  std::vector<std::unique_ptr<CompiledRoute>> routes;
  const CompiledRoute* current = nullptr;

  const CompiledRoute& compile(const Route& route) {
    const PlannedRoute planned = plan_route(plan, route);
    auto compiled = std::make_unique<CompiledRoute>();
    compiled->route = route;
    for (const std::vector<std::int64_t>& stage : planned.stages) {
      std::vector<BlockModule*> runs;
      for (const std::int64_t block : stage) {
        runs.push_back(modules[static_cast<std::size_t>(block)].get());
      }
      compiled->stages.push_back(std::move(runs));
    }
    compiled->ends_in_heads =
        planned.stages.size() == plan.stages.size() && plan.stages.back().size() > 1;
    compiled->heads_run = planned.heads_run;
    compiled->blocks_run = planned.blocks_run;
    routes.push_back(std::move(compiled));
    return *routes.back();
  }

  const CompiledRoute& find(const Route& route) {
    for (const auto& compiled : routes) {
      if (compiled->route == route) {
        return *compiled;
      }
    }
    return compile(route);
  }
};

GraphModel::GraphModel(const ModelSpec& spec, bool exact, std::uint64_t seed,
                       std::int64_t init_rank)
    : torch::nn::Module("GraphModel"), impl_(std::make_unique<Impl>()) {
  impl_->plan = plan_model(spec);
  const ModelPlan& plan = impl_->plan;
  LOCKSTEP_USAGE(plan.findings.empty(), "{}: {}", plan.findings[0].key, plan.findings[0].message);
  const at::ScalarType dtype = dtype_of(spec.dtype);
  for (const PlannedBlock& block : plan.blocks) {
    const auto owner = static_cast<std::size_t>(block.owner);
    impl_->modules.push_back(owner < impl_->modules.size()
                                 ? impl_->modules[owner]
                                 : std::make_shared<BlockModule>(block.spec, dtype));
    register_module(block.name, impl_->modules.back());
  }
  std::map<std::int64_t, at::Tensor> tensors;
  for (const ParameterSlot& slot : plan.slots) {
    const PlannedBlock& block = plan.blocks[static_cast<std::size_t>(slot.block)];
    at::Tensor& tensor = tensors[slot.tensor];
    if (!tensor.defined()) {
      // A tie takes the first-named parameter's values, whichever is registered first.
      const ParameterSlot& source = plan.slots[static_cast<std::size_t>(slot.tensor)];
      const BlockSpec& drawn_for = plan.blocks[static_cast<std::size_t>(source.block)].spec;
      tensor = draw_parameter(drawn_for, {source.local, source.sizes}, dtype,
                              {seed, init_rank, slot.tensor, exact});
      tensor.requires_grad_(!plan.frozen[static_cast<std::size_t>(slot.tensor)]);
    }
    if (block.owner == slot.block) {
      impl_->modules[static_cast<std::size_t>(slot.block)]->set_parameter(slot.local, tensor);
    }
  }
  impl_->current = &impl_->compile({});
}

GraphModel::~GraphModel() = default;

std::vector<at::Tensor> GraphModel::forward(const at::Tensor& input, const Route& route) {
  const CompiledRoute& compiled = impl_->find(route);
  impl_->current = &compiled;
  at::Tensor value = input;
  const std::size_t added = compiled.stages.size() - (compiled.ends_in_heads ? 1 : 0);
  for (std::size_t i = 0; i < added; ++i) {
    value = run_stage(compiled.stages[i], value);
  }
  std::vector<at::Tensor> outputs;
  if (!compiled.ends_in_heads) {
    outputs.push_back(std::move(value));
    return outputs;
  }
  outputs.reserve(compiled.stages.back().size());
  for (BlockModule* const head : compiled.stages.back()) {
    outputs.push_back(head->forward(value));
  }
  return outputs;
}

const std::vector<std::int64_t>& GraphModel::heads_run() const { return impl_->current->heads_run; }

const std::vector<bool>& GraphModel::blocks_run() const { return impl_->current->blocks_run; }

void GraphModel::replace_parameter(const std::string& name) {
  const std::vector<ParameterSlot>& slots = impl_->plan.slots;
  std::int64_t replaced = -1;
  for (const ParameterSlot& slot : slots) {
    replaced = slot.name == name ? slot.tensor : replaced;
  }
  LOCKSTEP_USAGE(replaced >= 0, "the model has no parameter \"{}\"", name);
  at::Tensor fresh;
  for (const ParameterSlot& slot : slots) {
    if (slot.tensor != replaced) {
      continue;
    }
    BlockModule& module = *impl_->modules[static_cast<std::size_t>(slot.block)];
    if (!fresh.defined()) {
      const at::Tensor old = module.named_parameters(/*recurse=*/false)[slot.local];
      fresh = old.detach().clone().requires_grad_(old.requires_grad());
    }
    module.set_parameter(slot.local, fresh);
  }
}

}  // namespace lockstep::harness
