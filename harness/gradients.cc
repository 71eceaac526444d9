// SPDX-License-Identifier: Apache-2.0
// Clearing, clipping and following gradients.
#include "harness/gradients.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/types.h>

#include <cmath>
#include <set>

#include "harness/snapshot.h"

namespace lockstep::harness {

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) {
    gradients.push_back(parameter.grad());
  }
  return gradients;
}

void clear_gradients(std::vector<at::Tensor>& parameters, bool to_none) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : parameters) {
    if (to_none) {
      parameter.mutable_grad() = at::Tensor();
    } else if (parameter.grad().defined()) {
      parameter.mutable_grad().zero_();
    }
  }
}

void clip_gradients(std::vector<at::Tensor>& parameters, double norm_max) {
  const at::NoGradGuard no_grad;
  double squares = 0.0;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) {
      squares += plain(parameter.grad()).to(at::kDouble).square().sum().item<double>();
    }
  }
  const double norm = std::sqrt(squares);
  if (norm > norm_max) {
    for (at::Tensor& parameter : parameters) {
      if (parameter.grad().defined()) {
        parameter.mutable_grad().mul_(norm_max / norm);
      }
    }
  }
}

std::vector<at::Tensor> move_by_gradients(std::vector<at::Tensor>& parameters, double rate) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> before;
  for (at::Tensor& parameter : parameters) {
    before.push_back(parameter.detach().clone());
    if (parameter.grad().defined()) {
      parameter.add_(parameter.grad(), rate);
      parameter.mutable_grad() = at::Tensor();
    }
  }
  return before;
}

void restore(std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < values.size(); ++i) {
    parameters[i].copy_(values[i]);
  }
}

std::vector<bool> lie_behind(const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& parameters) {
  std::set<const torch::autograd::Node*> seen;
  std::vector<const torch::autograd::Node*> open;
  const auto meet = [&](const torch::autograd::Edge& edge) {
    const torch::autograd::Node* node = edge.function.get();
    if (node != nullptr && seen.insert(node).second) {
      open.push_back(node);
    }
  };
  // A leaf that is an output has its node for as long as somebody holds it.
  std::vector<torch::autograd::Edge> roots;
  for (const at::Tensor& output : outputs) {
    roots.push_back(torch::autograd::impl::gradient_edge(output));
    meet(roots.back());
  }
  while (!open.empty()) {
    const torch::autograd::Node* node = open.back();
    open.pop_back();
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      meet(edge);
    }
  }
  std::vector<bool> behind;
  for (const at::Tensor& parameter : parameters) {
    behind.push_back(seen.count(torch::autograd::impl::gradient_edge(parameter).function.get()) >
                     0);
  }
  return behind;
}

}  // namespace lockstep::harness
