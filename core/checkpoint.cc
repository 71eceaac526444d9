// SPDX-License-Identifier: Apache-2.0
// The node that computes a part of the model again.
#include "core/checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/types.h>

#include <algorithm>
#include <mutex>
#include <typeinfo>
#include <unordered_set>

#include "core/check.h"
#include "core/torch_compat.h"

namespace lockstep {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

thread_local bool recomputing = false;

class RecomputingScope {
 public:
  explicit RecomputingScope(bool value) : previous_(std::exchange(recomputing, value)) {}
  ~RecomputingScope() { recomputing = previous_; }
  RecomputingScope(const RecomputingScope&) = delete;
  RecomputingScope& operator=(const RecomputingScope&) = delete;

 private:
  bool previous_;
};

at::Tensor rng_state() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_rng_state(const at::Tensor& state) {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// Draws continue from `state`, and afterwards from where they were. Nothing for undefined.
class RngScope {
 public:
  explicit RngScope(const at::Tensor& state) {
    if (state.defined()) {
      outer_ = rng_state();
      set_rng_state(state);
    }
  }
  ~RngScope() {
    if (outer_.defined()) {
      set_rng_state(outer_);
    }
  }
  RngScope(const RngScope&) = delete;
  RngScope& operator=(const RngScope&) = delete;

 private:
  at::Tensor outer_;
};

bool needs_gradient(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

bool any_needs_gradient(const variable_list& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), needs_gradient);
}

// Every leaf that `outputs` depend on must be among `listed`; tensors computed outside lead to
// leaves of the outer graph, so they are found as well.
void check_leaves(const variable_list& outputs, const variable_list& listed) {
  std::unordered_set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> open;
  // A leaf that is an output has its node for as long as somebody holds it.
  std::vector<torch::autograd::Edge> roots;
  for (const at::Tensor& output : outputs) {
    roots.push_back(torch::autograd::impl::gradient_edge(output));
    open.push_back(roots.back().function.get());
  }
  while (!open.empty()) {
    const torch::autograd::Node* node = open.back();
    open.pop_back();
    if (node == nullptr || !seen.insert(node).second) {
      continue;
    }
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      const bool is_listed =
          std::any_of(listed.begin(), listed.end(),
                      [leaf](const at::Tensor& tensor) { return tensor.is_same(leaf->variable); });
      LOCKSTEP_USAGE(is_listed,
                     "a checkpointed body depends on a tensor with {} elements that requires grad "
                     "but is neither among its inputs nor its parameters: its gradient would be "
                     "lost. List it",
                     leaf->variable.numel());
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      open.push_back(edge.function.get());
    }
  }
}

class CheckpointNode : public torch::autograd::Node {
 public:
  // `hidden`: of a re-entrant checkpoint only.
  CheckpointNode(CheckpointBody body, const variable_list& inputs, variable_list parameters,
                 std::optional<HiddenUse> hidden)
      : body_(std::move(body)), parameters_(std::move(parameters)), hidden_(std::move(hidden)) {
    for (const at::Tensor& input : inputs) {
      inputs_.emplace_back(input, /*is_output=*/false);
    }
  }

  // The first computation.
  variable_list run(const variable_list& inputs, bool preserve_rng_state) {
    const at::NoGradGuard no_grad;
    if (preserve_rng_state) {
      rng_state_ = rng_state();
    }
    variable_list outputs = body_(inputs);
    for (at::Tensor& output : outputs) {
      output = output.detach();  // it may be one of the inputs
      sizes_.push_back(output.sizes().vec());
    }
    return outputs;
  }

  variable_list apply(variable_list&& gradients) override {
    LOCKSTEP_USAGE(!at::GradMode::is_enabled(),
                   "a checkpoint cannot be differentiated twice: run backward without "
                   "create_graph");
    LOCKSTEP_USAGE(!is_released_, "backward through a checkpoint a second time: retain the graph");
    if (hidden_) {
      LOCKSTEP_USAGE(torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
                     "a reentrant checkpoint adds to .grad, so it cannot serve grad() or a "
                     "backward with chosen inputs: use `checkpoint`");
    }
    const RecomputingScope scope(!hidden_);
    const at::AutoGradMode record(true);
    variable_list inputs = detached_inputs();
    const auto [outputs, received] = recompute(inputs, gradients);
    return hidden_ ? backward_of(outputs, received, inputs)
                   : gradients_of(outputs, received, inputs);
  }

  void release_variables() override {
    inputs_.clear();
    is_released_ = true;
  }

  std::string name() const override { return "Checkpoint"; }

  const HiddenUse* hidden() const { return hidden_ ? &*hidden_ : nullptr; }

 private:
  variable_list detached_inputs() const {
    variable_list inputs;
    for (const SavedVariable& saved : inputs_) {
      const at::Tensor input = saved.unpack();
      inputs.push_back(needs_gradient(input) ? input.detach().requires_grad_() : input);
    }
    return inputs;
  }

  // The second computation: the outputs that carry a gradient, and those gradients.
  std::pair<variable_list, variable_list> recompute(const variable_list& inputs,
                                                    const variable_list& gradients) const {
    variable_list outputs;
    {
      const RngScope rng(rng_state_);
      outputs = body_(inputs);
    }
    std::vector<std::vector<std::int64_t>> sizes;
    for (const at::Tensor& output : outputs) {
      sizes.push_back(output.sizes().vec());
    }
    LOCKSTEP_USAGE(sizes == sizes_,
                   "a checkpointed body returned {} outputs, then {}, or other sizes: it must do "
                   "the same both times",
                   sizes_.size(), sizes.size());
    std::pair<variable_list, variable_list> differentiable;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (gradients[i].defined() && outputs[i].requires_grad()) {
        differentiable.first.push_back(outputs[i]);
        differentiable.second.push_back(gradients[i]);
      }
    }
    return differentiable;
  }

  static variable_list backward_of(const variable_list& outputs, const variable_list& received,
                                   const variable_list& inputs) {
    if (!outputs.empty()) {
      torch::autograd::backward(outputs, received);
    }
    variable_list gradients;
    for (const at::Tensor& input : inputs) {
      gradients.push_back(needs_gradient(input) ? input.grad() : at::Tensor());
    }
    return gradients;
  }

  variable_list gradients_of(const variable_list& outputs, const variable_list& received,
                             const variable_list& inputs) const {
    variable_list arguments = inputs;
    arguments.insert(arguments.end(), parameters_.begin(), parameters_.end());
    variable_list wanted;
    std::copy_if(arguments.begin(), arguments.end(), std::back_inserter(wanted), needs_gradient);
    check_leaves(outputs, wanted);
    variable_list found(wanted.size());
    if (!outputs.empty()) {
      found = torch::autograd::grad(outputs, wanted, received, /*retain_graph=*/false,
                                    /*create_graph=*/false, /*allow_unused=*/true);
    }
    variable_list gradients;
    std::size_t next = 0;
    for (const at::Tensor& argument : arguments) {
      gradients.push_back(needs_gradient(argument) ? found[next++] : at::Tensor());
    }
    return gradients;
  }

  CheckpointBody body_;
  std::vector<SavedVariable> inputs_;
  variable_list parameters_;
  std::optional<HiddenUse> hidden_;  // of a re-entrant checkpoint only
  bool is_released_ = false;
  at::Tensor rng_state_;
  std::vector<std::vector<std::int64_t>> sizes_;
};

variable_list run_checkpoint(CheckpointBody body, const variable_list& inputs,
                             const variable_list& parameters, std::optional<HiddenUse> hidden,
                             bool preserve_rng_state) {
  variable_list arguments = inputs;
  arguments.insert(arguments.end(), parameters.begin(), parameters.end());
  const auto node =
      compat::make_node<CheckpointNode>(std::move(body), inputs, parameters, std::move(hidden));
  node->set_next_edges(torch::autograd::collect_next_edges(arguments));
  variable_list outputs = node->run(inputs, preserve_rng_state);
  for (at::Tensor& output : outputs) {
    LOCKSTEP_USAGE(output.is_floating_point(),
                   "a checkpointed body must return floating-point tensors");
    torch::autograd::set_history(output, node);
  }
  return outputs;
}

}  // namespace

bool recomputes_without_accumulating() { return recomputing; }

const HiddenUse* hidden_use(const torch::autograd::Node& node) {
  // Asked of every node of a graph; comparing types is cheaper than a cast.
  return typeid(node) == typeid(CheckpointNode) ? static_cast<const CheckpointNode&>(node).hidden()
                                                : nullptr;
}

std::vector<at::Tensor> checkpoint(CheckpointBody body, const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& parameters,
                                   const CheckpointOptions& options) {
  if (!at::GradMode::is_enabled() ||
      !(any_needs_gradient(inputs) || any_needs_gradient(parameters))) {
    return body(inputs);
  }
  return run_checkpoint(std::move(body), inputs, parameters, std::nullopt,
                        options.preserve_rng_state);
}

std::vector<at::Tensor> checkpoint_reentrant(CheckpointBody body,
                                             const std::vector<at::Tensor>& inputs,
                                             const CheckpointOptions& options) {
  if (!at::GradMode::is_enabled()) {
    return body(inputs);
  }
  LOCKSTEP_USAGE(any_needs_gradient(inputs),
                 "no input of a reentrant checkpoint requires grad, so no gradient would reach its "
                 "body: let an input require grad, or use `checkpoint`");
  HiddenUse hidden;
  hidden.of_any = !options.may_use;
  hidden.of_these = options.may_use.value_or(variable_list());
  return run_checkpoint(std::move(body), inputs, {}, std::move(hidden), options.preserve_rng_state);
}

}  // namespace lockstep
