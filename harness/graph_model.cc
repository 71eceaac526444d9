// SPDX-License-Identifier: Apache-2.0
// Builds the module of a plan and runs it along routes.
#include "harness/graph_model.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
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
  std::vector<std::vector<BlockModule*>> stages;  ///< as planned; null: left out
  std::vector<std::vector<bool>> muted;           ///< the same blocks
  bool ends_in_heads = false;                     ///< the last of `stages` holds separate heads
  std::vector<std::int64_t> heads_run;
  std::vector<bool> blocks_run;
};

at::ScalarType dtype_of(const std::string& name) {
  return name == "float64" ? at::kDouble : at::kFloat;
}

/// A replica on its way through the model.
struct Passage {
  const CompiledRoute* route = nullptr;
  const BlockWatcher* watcher = nullptr;  ///< never null; may be empty
  const InputMover* mover = nullptr;      ///< never null; may be empty
  at::Tensor value;                       ///< what the next stage is given
  std::vector<at::Tensor> outputs;        ///< of the stage in progress, in its order

  bool runs(std::size_t stage, std::size_t block) const {
    return stage < route->stages.size() && route->stages[stage][block] != nullptr;
  }
  bool reaches_heads(std::size_t stage) const {
    return route->ends_in_heads && stage + 1 == route->stages.size();
  }
};

/// Runs one block of every replica whose route has it. `index`: its place in model.blocks.
void run_block(std::vector<Passage>& passages, std::size_t stage, std::size_t block,
               std::int64_t index) {
  std::vector<BlockModule*> modules;
  std::vector<at::Tensor> inputs;
  for (const Passage& passage : passages) {
    if (passage.runs(stage, block)) {
      modules.push_back(passage.route->stages[stage][block]);
      inputs.push_back(*passage.mover ? (*passage.mover)(passage.value) : passage.value);
    }
  }
  if (modules.empty()) {
    return;
  }
  std::vector<at::Tensor> outputs = BlockModule::forward_together(modules, inputs);
  std::size_t next = 0;
  for (Passage& passage : passages) {
    if (passage.runs(stage, block)) {
      at::Tensor& output = outputs[next++];
      passage.outputs.push_back(passage.route->muted[stage][block] ? output * 0
                                                                   : std::move(output));
      if (*passage.watcher) {
        (*passage.watcher)(static_cast<std::int64_t>(stage), index, passage.value,
                           passage.outputs.back());
      }
    }
  }
}

/// The stage's outputs added up; its input if there are none.
void add_up(Passage& passage) {
  if (passage.outputs.empty()) {
    return;
  }
  passage.value = std::move(passage.outputs[0]);
  for (std::size_t i = 1; i < passage.outputs.size(); ++i) {
    passage.value = passage.value + passage.outputs[i];
  }
  passage.outputs.clear();
}

}  // namespace

struct GraphModel::Impl {
  ModelPlan plan;
  std::vector<std::shared_ptr<BlockModule>> modules;  // by block; shared ones several times
  // Routes are few and recur; the full one comes first. unique_ptr: `current` stays valid.
  std::vector<std::unique_ptr<CompiledRoute>> routes;
  const CompiledRoute* current = nullptr;
  BlockWatcher watcher;
  InputMover mover;

  const CompiledRoute& compile(const Route& route) {
    const PlannedRoute planned = plan_route(plan, route);
    auto compiled = std::make_unique<CompiledRoute>();
    compiled->route = route;
    for (std::size_t stage = 0; stage < planned.stages.size(); ++stage) {
      std::vector<BlockModule*> runs;
      std::vector<bool> muted;
      for (const std::int64_t block : plan.stages[stage]) {
        const auto at = static_cast<std::size_t>(block);
        runs.push_back(planned.blocks_run[at] ? modules[at].get() : nullptr);
        muted.push_back(std::find(route.mute.begin(), route.mute.end(), plan.blocks[at].name) !=
                        route.mute.end());
      }
      compiled->stages.push_back(std::move(runs));
      compiled->muted.push_back(std::move(muted));
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
      tensor =
          draw_parameter(drawn_for, {source.local, source.sizes}, parameter_dtype(drawn_for, dtype),
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

void GraphModel::set_communicator(Communicator& communicator) {
  for (const auto& module : impl_->modules) {
    module->set_communicator(communicator);
  }
}

std::vector<at::Tensor> GraphModel::forward(const at::Tensor& input, const Route& route) {
  return std::move(forward_together({{this, input, &route}}).front());
}

std::vector<std::vector<at::Tensor>> forward_together(const std::vector<ReplicaForward>& replicas) {
  std::vector<Passage> passages;
  for (const ReplicaForward& replica : replicas) {
    GraphModel::Impl& impl = *replica.model->impl_;
    impl.current = &impl.find(*replica.route);
    passages.push_back({impl.current, &impl.watcher, &impl.mover, replica.input, {}});
  }
  const auto& stages = replicas.front().model->impl_->plan.stages;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    for (std::size_t block = 0; block < stages[stage].size(); ++block) {
      run_block(passages, stage, block, stages[stage][block]);
    }
    for (Passage& passage : passages) {
      if (!passage.reaches_heads(stage)) {
        add_up(passage);
      }
    }
  }
  std::vector<std::vector<at::Tensor>> outputs;
  for (Passage& passage : passages) {
    if (!passage.route->ends_in_heads) {
      passage.outputs.push_back(std::move(passage.value));
    }
    outputs.push_back(std::move(passage.outputs));
  }
  return outputs;
}

const std::vector<std::int64_t>& GraphModel::heads_run() const { return impl_->current->heads_run; }

const std::vector<bool>& GraphModel::blocks_run() const { return impl_->current->blocks_run; }

void GraphModel::watch_blocks(BlockWatcher watcher) { impl_->watcher = std::move(watcher); }

void GraphModel::move_inputs(InputMover mover) { impl_->mover = std::move(mover); }

void GraphModel::replace_parameter(const std::string& name) {
  const auto parameters = named_parameters();
  LOCKSTEP_USAGE(parameters.contains(name), "the model has no parameter \"{}\"", name);
  replace_parameter(name, parameters[name].detach().clone());
}

void GraphModel::replace_parameter(const std::string& name, const at::Tensor& fresh) {
  bool is_frozen = false;
  for (const ParameterSlot& slot : impl_->plan.slots) {
    if (slot.name == name) {
      is_frozen = impl_->plan.frozen[static_cast<std::size_t>(slot.tensor)];
    }
  }
  tie_parameter(name, fresh.detach().requires_grad_(!is_frozen));
}

void GraphModel::tie_parameter(const std::string& name, const at::Tensor& other) {
  const std::vector<ParameterSlot>& slots = impl_->plan.slots;
  std::int64_t replaced = -1;
  for (const ParameterSlot& slot : slots) {
    replaced = slot.name == name ? slot.tensor : replaced;
  }
  LOCKSTEP_USAGE(replaced >= 0, "the model has no parameter \"{}\"", name);
  for (const ParameterSlot& slot : slots) {
    if (slot.tensor == replaced) {
      impl_->modules[static_cast<std::size_t>(slot.block)]->set_parameter(slot.local, other);
    }
  }
}

}  // namespace lockstep::harness
