// SPDX-License-Identifier: Apache-2.0
// An identity over several tensors.
#include "harness/reference/joint_outputs.h"

#include <torch/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "core/torch_compat.h"

namespace lockstep::harness {
namespace {

class Identities final : public torch::autograd::Node {
 public:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return std::move(gradients);
  }
  std::string name() const override { return "Identities"; }
};

}  // namespace

void join_outputs(std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& trained) {
  std::vector<at::Tensor*> joined;
  torch::autograd::edge_list edges;
  for (at::Tensor& output : outputs) {
    const bool is_trained = std::any_of(trained.begin(), trained.end(),
                                        [&](const at::Tensor& one) { return one.is_same(output); });
    if (output.requires_grad() && (!output.is_leaf() || is_trained)) {
      edges.push_back(torch::autograd::impl::gradient_edge(output));
      joined.push_back(&output);
    }
  }
  if (joined.empty()) {
    return;
  }
  const auto node = compat::make_node<Identities>();
  node->set_next_edges(std::move(edges));
  for (at::Tensor* output : joined) {
    at::Tensor value = output->detach().clone();
    torch::autograd::set_history(value, node);
    *output = value;
  }
}

}  // namespace lockstep::harness
