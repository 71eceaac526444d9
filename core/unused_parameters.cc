// SPDX-License-Identifier: Apache-2.0
// Graph traversal and the used map.
#include "core/unused_parameters.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <unordered_set>

#include "core/check.h"
#include "core/checkpoint.h"

namespace lockstep {

std::vector<Use> search_uses(const std::vector<at::Tensor*>& outputs,
                             const AccumulatorIndex& accumulators) {
  std::unordered_set<const torch::autograd::Node*> seen;
  seen.reserve(8 * accumulators.size());
  std::vector<const torch::autograd::Node*> open;
  const auto visit = [&](const torch::autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) {
      open.push_back(node);
    }
  };
  // A leaf that is an output has its node for as long as somebody holds it.
  std::vector<torch::autograd::Edge> roots;
  for (const at::Tensor* output : outputs) {
    if (output->defined() && output->requires_grad()) {
      roots.push_back(torch::autograd::impl::gradient_edge(*output));
      visit(roots.back().function.get());
    }
  }
  const auto num_parameters = static_cast<std::int64_t>(accumulators.size());
  std::vector<Use> uses(accumulators.size(), Use::kUnmet);
  const auto hide = [&uses](std::int64_t parameter) {
    Use& use = uses[static_cast<std::size_t>(parameter)];
    use = use == Use::kMet ? Use::kMet : Use::kHidden;
  };
  while (!open.empty()) {
    const torch::autograd::Node* node = open.back();
    open.pop_back();
    if (const auto found = accumulators.find(node); found != accumulators.end()) {
      uses[static_cast<std::size_t>(found->second)] = Use::kMet;
    }
    if (const HiddenUse* hidden = hidden_use(*node); hidden != nullptr) {
      for (std::int64_t parameter = 0; hidden->of_any && parameter < num_parameters; ++parameter) {
        hide(parameter);
      }
      for (const at::Tensor& tensor : hidden->of_these) {
        const auto accumulator =
            tensor.defined() ? torch::autograd::impl::try_get_grad_accumulator(tensor) : nullptr;
        if (const auto at = accumulators.find(accumulator.get()); at != accumulators.end()) {
          hide(at->second);
        }
      }
    }
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      visit(edge.function.get());
    }
  }
  return uses;
}

std::vector<std::int64_t> search_unused_parameters(const std::vector<at::Tensor*>& outputs,
                                                   const AccumulatorIndex& accumulators) {
  const std::vector<Use> uses = search_uses(outputs, accumulators);
  std::vector<std::int64_t> unused;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (uses[i] != Use::kMet) {
      unused.push_back(static_cast<std::int64_t>(i));
    }
  }
  return unused;
}

UsedMap::UsedMap(std::int64_t num_parameters, at::Device device)
    : device_(device),
      local_(static_cast<std::size_t>(num_parameters), 0),
      reduced_(static_cast<std::size_t>(num_parameters), 0) {}

void UsedMap::launch(Communicator& communicator, CollectiveTag tag) {
  LOCKSTEP_CHECK(work_ == nullptr, "the used map is reduced already");
  const at::NoGradGuard no_grad;
  in_flight_ = at::empty({static_cast<std::int64_t>(local_.size())}, at::kInt);
  std::copy(local_.begin(), local_.end(), in_flight_.data_ptr<std::int32_t>());
  in_flight_ = in_flight_.to(device_);
  work_ = communicator.all_reduce(in_flight_, ReduceOp::kSum, tag);
}

void UsedMap::wait() {
  if (work_ == nullptr) {
    return;
  }
  work_->wait();
  work_.reset();
  const at::Tensor on_cpu = in_flight_.cpu();
  const auto* counts = on_cpu.data_ptr<std::int32_t>();
  reduced_.assign(counts, counts + on_cpu.numel());
}

std::int64_t UsedMap::ranks_using(std::int64_t parameter) {
  wait();
  return reduced_[static_cast<std::size_t>(parameter)];
}

void UsedMap::reset() { std::fill(local_.begin(), local_.end(), 0); }

}  // namespace lockstep
