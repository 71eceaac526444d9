// SPDX-License-Identifier: Apache-2.0
// The sink's autograd node.
#include "core/ddp_sink.h"

#include <torch/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/types.h>

#include <memory>
#include <utility>

#include "core/torch_compat.h"

namespace lockstep {
namespace {

class DdpSink : public torch::autograd::Node {
 public:
  explicit DdpSink(std::function<void()> on_backward) : on_backward_(std::move(on_backward)) {}

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    on_backward_();
    return std::move(gradients);
  }

  std::string name() const override { return "DdpSink"; }

 private:
  std::function<void()> on_backward_;
};

}  // namespace

void attach_sink(const std::vector<at::Tensor*>& outputs, std::function<void()> on_backward) {
  const auto sink = compat::make_node<DdpSink>(std::move(on_backward));
  torch::autograd::edge_list edges;
  edges.reserve(outputs.size());
  for (const at::Tensor* output : outputs) {
    edges.push_back(torch::autograd::impl::gradient_edge(*output));
  }
  sink->set_next_edges(std::move(edges));
  for (at::Tensor* output : outputs) {
    at::Tensor clone;
    {
      const at::NoGradGuard no_grad;
      clone = output->clone();
    }
    torch::autograd::set_history(clone, sink);
    *output = clone;
  }
}

}  // namespace lockstep
