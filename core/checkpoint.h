// SPDX-License-Identifier: Apache-2.0
// Activation checkpointing: forget what a part of the model saved, and compute it again in
// backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace lockstep {

/// The part of a forward to be computed twice. Must do the same both times; it may draw from the
/// default CPU generator. Sizes and number of outputs must not change.
using CheckpointBody =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

struct CheckpointOptions {
  /// The second computation draws the same random numbers as the first (dropout). Ranks that are
  /// threads of one process share the generator: one of them at a time may draw then.
  bool preserve_rng_state = true;
  /// `checkpoint_reentrant` only: every parameter that `body` may use, for checked mode to tell the
  /// others from unused ones. Left out: it may use any.
  std::optional<std::vector<at::Tensor>> may_use;
};

// Note [Two kinds of checkpoints]
// Both run `body` without recording, keep its inputs, and run it again with recording when backward
// arrives. They differ in how gradients leave the second run, hence in what DDP sees (F15).
//
// `checkpoint` asks for the gradients of inputs and parameters and returns them as its own. To the
// outer graph it is one operation with all of them as arguments, so each parameter's accumulator
// runs once, after all its uses, and a search for unused parameters finds them: DDP cannot tell the
// difference from a model without checkpoints. The parameters must be listed. (PyTorch recomputes
// in hooks on saved tensors instead; LibTorch can install those from C++ only by replacing the
// process's autograd engine.)
//
// `checkpoint_reentrant` runs a backward inside backward that adds to `.grad` itself. Accumulators
// run once per checkpoint that uses the parameter, and the outer graph knows nothing of them. Under
// DDP a parameter may then take part in one checkpoint only (`ready_twice` otherwise), and
// find_unused_parameters mistakes it for unused (`ready_twice` too); static_graph allows both (L7).

/// Runs `body(inputs)`; its gradients are recomputed and returned to the graph.
///
/// `parameters`: every other tensor requiring grad that `body` uses, each once. Defined tensors;
/// order is free. Without grad mode, or if nothing requires grad, this is just `body(inputs)`.
/// Errors, out of backward: UsageError if `body` used a tensor that is not listed, if what it
/// returned has changed, or for create_graph. What `body` throws comes out.
std::vector<at::Tensor> checkpoint(CheckpointBody body, const std::vector<at::Tensor>& inputs,
                                   const std::vector<at::Tensor>& parameters,
                                   const CheckpointOptions& options = {});

/// Runs `body(inputs)`; recomputation ends in a nested backward.
///
/// Without grad mode this is just `body(inputs)`.
/// Errors: UsageError if no input requires grad, since then no gradient would reach `body`. Out of
/// backward: UsageError if what `body` returned has changed, for create_graph, and for a backward
/// that was asked for chosen inputs only (`grad()`). What `body` throws comes out.
std::vector<at::Tensor> checkpoint_reentrant(CheckpointBody body,
                                             const std::vector<at::Tensor>& inputs,
                                             const CheckpointOptions& options = {});

/// Tensors that a node's own backward may give gradients, where a walk over the graph does not
/// lead.
struct HiddenUse {
  bool of_any = false;  ///< of every tensor there is
  std::vector<at::Tensor> of_these;
};

/// What a re-entrant checkpoint hides; null for every other node. Lives as long as `node`.
const HiddenUse* hidden_use(const torch::autograd::Node& node);

/// True on a thread while `checkpoint` recomputes: no accumulator will run inside.
bool recomputes_without_accumulating();

/// `module->forward(input)` as a `checkpoint` over the module's parameters.
template <typename M>
at::Tensor checkpoint(const std::shared_ptr<M>& module, const at::Tensor& input,
                      const CheckpointOptions& options = {}) {
  return checkpoint(
      [module](const std::vector<at::Tensor>& inputs) {
        return std::vector<at::Tensor>{module->forward(inputs[0])};
      },
      {input}, module->parameters(), options)[0];
}

/// `module->forward(input)` as a `checkpoint_reentrant`.
template <typename M>
at::Tensor checkpoint_reentrant(const std::shared_ptr<M>& module, const at::Tensor& input,
                                const CheckpointOptions& options = {}) {
  return checkpoint_reentrant(
      [module](const std::vector<at::Tensor>& inputs) {
        return std::vector<at::Tensor>{module->forward(inputs[0])};
      },
      {input}, options)[0];
}

}  // namespace lockstep
