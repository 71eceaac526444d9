// SPDX-License-Identifier: Apache-2.0
// Walks over a module's parameters and buffers.
#include "core/module_selection.h"

#include <torch/nn/modules/embedding.h>
#include <torch/types.h>

#include <unordered_set>

#include "core/check.h"

namespace lockstep {
namespace {

Selection select(const torch::OrderedDict<std::string, at::Tensor>& named,
                 const std::set<std::string>& ignored) {
  Selection selection;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& item : named) {
    const at::Tensor& tensor = item.value();
    if (tensor.defined() && ignored.count(item.key()) == 0 &&
        seen.insert(tensor.unsafeGetTensorImpl()).second) {
      selection.names.push_back(item.key());
      selection.tensors.push_back(tensor);
    }
  }
  return selection;
}

// The weights of embeddings with sparse gradients (C4).
void collect_sparse(const torch::nn::Module& module,
                    std::unordered_set<const at::TensorImpl*>& sparse) {
  const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module);
  if (embedding != nullptr && embedding->options.sparse()) {
    sparse.insert(embedding->weight.unsafeGetTensorImpl());
  }
  const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module);
  if (bag != nullptr && bag->options.sparse()) {
    sparse.insert(bag->weight.unsafeGetTensorImpl());
  }
  for (const auto& child : module.children()) {
    collect_sparse(*child, sparse);
  }
}

}  // namespace

Selection parameters_of(const torch::nn::Module& module, const std::set<std::string>& ignored) {
  return select(module.named_parameters(), ignored);
}

Selection buffers_of(const torch::nn::Module& module, const std::set<std::string>& ignored) {
  return select(module.named_buffers(), ignored);
}

Selection trainable(const Selection& all) {
  Selection selection;
  for (std::size_t i = 0; i < all.tensors.size(); ++i) {
    if (all.tensors[i].requires_grad()) {
      selection.names.push_back(all.names[i]);
      selection.tensors.push_back(all.tensors[i]);
    }
  }
  return selection;
}

SparseFlags sparse_flags(const torch::nn::Module& module, const std::vector<std::string>& declared,
                         const Selection& selection) {
  std::unordered_set<const at::TensorImpl*> sparse;
  collect_sparse(module, sparse);
  const auto parameters = module.named_parameters();
  for (const std::string& name : declared) {
    LOCKSTEP_USAGE(parameters.contains(name),
                   "'{}', said to have sparse gradients, is no parameter of the module", name);
    sparse.insert(parameters[name].unsafeGetTensorImpl());
  }
  SparseFlags flags;
  for (const at::Tensor& tensor : selection.tensors) {
    flags.push_back(sparse.count(tensor.unsafeGetTensorImpl()) > 0);
  }
  return flags;
}

void check_ignored(const torch::nn::Module& module, const std::vector<std::string>& ignored) {
  const auto parameters = module.named_parameters();
  const auto buffers = module.named_buffers();
  for (const std::string& name : ignored) {
    LOCKSTEP_USAGE(parameters.contains(name) || buffers.contains(name),
                   "ignored tensor '{}' is neither a parameter nor a buffer of the module", name);
  }
}

void check_devices(const Selection& selection) {
  for (std::size_t i = 0; i < selection.tensors.size(); ++i) {
    LOCKSTEP_USAGE(
        selection.tensors[i].device().type() == selection.tensors.front().device().type(),
        "parameters must be on one type of device, but {} is on {} and {} on {}",
        selection.names.front(), selection.tensors.front().device().str(), selection.names[i],
        selection.tensors[i].device().str());
  }
}

}  // namespace lockstep
