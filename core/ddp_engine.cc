// SPDX-License-Identifier: Apache-2.0
// What surrounds the reducer: which tensors it gets, initial broadcast, buffers, no_sync.
#include "core/ddp_engine.h"

#include <torch/nn/modules/embedding.h>
#include <torch/types.h>

#include <algorithm>
#include <set>
#include <unordered_set>

#include "core/check.h"
#include "core/module_states.h"
#include "core/parameter_check.h"
#include "core/reducer.h"

namespace lockstep {
namespace {

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

// The tensors of `named` that are defined and not ignored, each once, by its first name (A1, A2).
void append_distinct(const NamedTensors& named, const std::set<std::string>& ignored,
                     std::unordered_set<const at::TensorImpl*>& seen,
                     std::vector<std::string>& names, std::vector<at::Tensor>& tensors) {
  for (const auto& item : named) {
    const at::Tensor& tensor = item.value();
    if (tensor.defined() && ignored.count(item.key()) == 0 &&
        seen.insert(tensor.unsafeGetTensorImpl()).second) {
      names.push_back(item.key());
      tensors.push_back(tensor);
    }
  }
}

struct Selection {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};

Selection select(const NamedTensors& named, const std::set<std::string>& ignored) {
  Selection selection;
  std::unordered_set<const at::TensorImpl*> seen;
  append_distinct(named, ignored, seen, selection.names, selection.tensors);
  return selection;
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

void check_ignored(const torch::nn::Module& module, const std::vector<std::string>& ignored) {
  const NamedTensors parameters = module.named_parameters();
  const NamedTensors buffers = module.named_buffers();
  for (const std::string& name : ignored) {
    LOCKSTEP_USAGE(parameters.contains(name) || buffers.contains(name),
                   "ignored tensor '{}' is neither a parameter nor a buffer of the module", name);
  }
}

void check_no_sparse_embedding(const torch::nn::Module& module, const std::string& prefix) {
  const auto* embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module);
  const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module);
  const bool is_sparse = (embedding != nullptr && embedding->options.sparse()) ||
                         (bag != nullptr && bag->options.sparse());
  LOCKSTEP_USAGE(!is_sparse, "module '{}' yields sparse gradients, which are not supported",
                 prefix);
  for (const auto& child : module.named_children()) {
    check_no_sparse_embedding(
        *child.value(), prefix.empty() ? child.key() : fmt::format("{}.{}", prefix, child.key()));
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

}  // namespace

struct DdpEngine::Impl {
  Impl(torch::nn::Module& module_in, Communicator& communicator_in, const DdpOptions& options_in)
      : module(module_in),
        communicator(communicator_in),
        options(options_in),
        ignored(options_in.ignored.begin(), options_in.ignored.end()) {}

  void broadcast(const std::vector<at::Tensor>& tensors, CallSite site) {
    BroadcastOptions broadcast_options;
    broadcast_options.site = site;
    broadcast_options.step = site == CallSite::kModuleStates ? -1 : step;
    broadcast_coalesced(communicator, tensors, broadcast_options);
  }

  void tell(EventKind kind, std::int64_t index = -1) const {
    if (options.observer != nullptr) {
      options.observer->on_event({kind, index});
    }
  }

  torch::nn::Module& module;
  Communicator& communicator;
  DdpOptions options;
  std::set<std::string> ignored;
  std::unique_ptr<Reducer> reducer;
  bool has_buffers = false;
  bool require_backward_sync = true;  // cleared by no_sync (H1)
  bool require_buffer_sync = true;    // set at the end of each forward (J4)
  std::int64_t num_synchronized_forwards = 0;
  std::int64_t step = -1;
  bool step_is_given = false;
};

DdpEngine::DdpEngine(torch::nn::Module& module, Communicator& communicator,
                     const DdpOptions& options)
    : impl_(std::make_unique<Impl>(module, communicator, options)) {
  check_ignored(module, options.ignored);
  check_no_sparse_embedding(module, "");
  Selection states = select(module.named_parameters(), impl_->ignored);
  Selection selection = trainable(states);
  LOCKSTEP_USAGE(!selection.tensors.empty(),
                 "the module has no parameter that requires a gradient: nothing to synchronise");
  check_devices(selection);
  const Selection buffers = select(module.named_buffers(), impl_->ignored);
  impl_->has_buffers = !buffers.tensors.empty();
  impl_->reducer = std::make_unique<Reducer>(std::move(selection.tensors),
                                             std::move(selection.names), communicator, options);
  if (options.init_sync) {
    verify_parameters(communicator, impl_->reducer->parameters(), impl_->reducer->names());
    if (options.broadcast_buffers) {
      states.tensors.insert(states.tensors.end(), buffers.tensors.begin(), buffers.tensors.end());
    }
    impl_->broadcast(states.tensors, CallSite::kModuleStates);
  }
}

DdpEngine::~DdpEngine() = default;

void DdpEngine::before_forward() {
  Impl& impl = *impl_;
  const bool has_gradients = at::GradMode::is_enabled();
  const bool synchronized = has_gradients && impl.require_backward_sync;
  if (synchronized) {
    if (!impl.step_is_given) {
      impl.step = impl.num_synchronized_forwards;
    }
    ++impl.num_synchronized_forwards;
  }
  impl.reducer->set_step(impl.step);
  impl.tell(EventKind::kForward, synchronized ? 1 : 0);
  if (has_gradients) {
    impl.reducer->rebuild_buckets_if_due();
  }
  if (impl.require_buffer_sync && impl.options.broadcast_buffers && impl.has_buffers) {
    // Collected anew because modules replace their buffers (J3).
    impl.broadcast(select(impl.module.named_buffers(), impl.ignored).tensors, CallSite::kBuffers);
    impl.tell(EventKind::kBuffersSynced);
  }
}

bool DdpEngine::wants_output_tensors() const {
  return at::GradMode::is_enabled() && impl_->reducer->wants_sink(impl_->require_backward_sync);
}

void DdpEngine::after_forward(const std::vector<at::Tensor*>& outputs) {
  Impl& impl = *impl_;
  const bool wants_sink = wants_output_tensors();
  impl.require_buffer_sync = at::GradMode::is_enabled() && impl.require_backward_sync;
  if (impl.require_buffer_sync) {
    impl.reducer->arm(outputs);
  }
  if (wants_sink) {
    impl.reducer->attach_sink_to(outputs);
  }
}

NoSyncGuard DdpEngine::no_sync() { return NoSyncGuard(*this); }

void DdpEngine::set_step(std::int64_t step) {
  LOCKSTEP_USAGE(step >= 0, "step {} is negative", step);
  impl_->step = step;
  impl_->step_is_given = true;
  impl_->reducer->set_step(step);
}

const std::vector<std::string>& DdpEngine::parameter_names() const {
  return impl_->reducer->names();
}

const std::vector<at::Tensor>& DdpEngine::parameters() const {
  return impl_->reducer->parameters();
}

std::shared_ptr<const BucketLayout> DdpEngine::bucket_layout() const {
  return impl_->reducer->layout();
}

ReducerState DdpEngine::state() const { return impl_->reducer->state(); }

NoSyncGuard::NoSyncGuard(DdpEngine& engine)
    : engine_(engine), previous_(engine.impl_->require_backward_sync) {
  engine.impl_->require_backward_sync = false;
}

NoSyncGuard::~NoSyncGuard() { engine_.impl_->require_backward_sync = previous_; }

}  // namespace lockstep
