// SPDX-License-Identifier: Apache-2.0
// What surrounds the reducer: which tensors it gets, initial broadcast, buffers, no_sync.
#include "core/ddp_engine.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <optional>
#include <set>

#include "core/check.h"
#include "core/checkpoint.h"
#include "core/ddp_join.h"
#include "core/module_selection.h"
#include "core/module_states.h"
#include "core/parameter_check.h"
#include "core/reducer.h"

namespace lockstep {
namespace {

// The backward inside `checkpoint` ends before any accumulator runs, and with it the first backward
// of a static graph, which would reduce nothing and record that no parameter is used (A11, L7).
void check_not_checkpointed_static(const Reducer& reducer, std::int64_t rank) {
  if (reducer.is_static() && recomputes_without_accumulating()) {
    throw DdpError("checkpoint_static_graph",
                   fmt::format("rank {}: with a static graph the wrapper itself cannot be inside "
                               "`checkpoint`: use `checkpoint_reentrant`, checkpoint parts of the "
                               "wrapped module, or leave static_graph off",
                               rank));
  }
}

DdpError buffer_changed(std::int64_t rank, std::int64_t step, std::int64_t root,
                        const std::string& name) {
  return DdpError(
      "buffer_changed_while_saved",
      fmt::format(
          "rank {}, step {}: the buffer {} was not that of rank {}, and became it before "
          "this forward, while an earlier forward still awaits its backward and may have "
          "saved it. Call backward before the next forward, leave broadcast_buffers off, or "
          "make the buffer the same on all ranks",
          rank, step, name, root),
      {name});
}

}  // namespace

struct DdpEngine::Impl {
  Impl(torch::nn::Module& module_in, Communicator& communicator_in, const DdpOptions& options_in,
       DdpEngine& engine)
      : module(module_in),
        communicator(&communicator_in),
        options(options_in),
        ignored(options_in.ignored.begin(), options_in.ignored.end()),
        join(engine) {}

  void broadcast(const std::vector<at::Tensor>& tensors, CallSite site, std::int64_t root) {
    BroadcastOptions broadcast_options;
    broadcast_options.root = root;
    broadcast_options.site = site;
    broadcast_options.step = site == CallSite::kModuleStates ? -1 : step;
    broadcast_coalesced(*communicator, tensors, broadcast_options);
  }

  // `outputs`: null on a rank that has joined, which leaves nothing unused.
  void check_unused(const std::vector<at::Tensor*>* outputs) const {
    if (options.checks.level == Checks::kFull) {
      verify_unused(*communicator,
                    outputs == nullptr ? std::vector<Use>(reducer->names().size(), Use::kMet)
                                       : reducer->uses_in(*outputs),
                    reducer->names(), options.find_unused_parameters || reducer->is_static(), step);
    }
  }

  bool buffers_are_due(BufferHookPoint point) const {
    return point == buffer_point && require_buffer_sync && options.broadcast_buffers && has_buffers;
  }

  bool synchronizes() const { return require_backward_sync && reducer->has_hooks(); }

  void tell(EventKind kind, std::int64_t index = -1) const {
    if (options.observer != nullptr) {
      options.observer->on_event({kind, index});
    }
  }

  torch::nn::Module& module;
  Communicator* communicator;
  DdpOptions options;
  std::set<std::string> ignored;
  std::unique_ptr<Reducer> reducer;
  DdpJoin join;
  std::optional<ModuleWatch> watch;  // checked mode only
  CheckedState checked_state;
  BufferHook buffer_hook;
  BufferHookPoint buffer_point = BufferHookPoint::kPreForward;  // also of the broadcast (E4)
  DdpLoggingData logging;
  bool has_buffers = false;
  bool require_backward_sync = true;  // cleared by no_sync (H1)
  bool require_buffer_sync = true;    // set at the end of each forward (J4)
  std::int64_t num_synchronized_forwards = 0;
  std::int64_t step = -1;
  bool step_is_given = false;
};

DdpEngine::DdpEngine(torch::nn::Module& module, Communicator& communicator,
                     const DdpOptions& options)
    : impl_(std::make_unique<Impl>(module, communicator, options, *this)) {
  LOCKSTEP_USAGE(
      options.checks.backwards_per_forward > 0 && options.checks.replicas_every >= 0,
      "checks: {} backwards per forward, replicas every {} steps; expected at least one, "
      "and no negative number",
      options.checks.backwards_per_forward, options.checks.replicas_every);
  LOCKSTEP_USAGE(options.logging_sample_rate > 0, "the logging sample rate is {}, but must be > 0",
                 options.logging_sample_rate);
  check_ignored(module, options.ignored);
  Selection selection = trainable(parameters_of(module, impl_->ignored));
  LOCKSTEP_USAGE(!selection.tensors.empty(),
                 "the module has no parameter that requires a gradient: nothing to synchronise");
  check_devices(selection);
  impl_->has_buffers = !buffers_of(module, impl_->ignored).tensors.empty();
  SparseFlags sparse = sparse_flags(module, options.sparse, selection);
  impl_->reducer =
      std::make_unique<Reducer>(std::move(selection.tensors), std::move(selection.names),
                                communicator, options, std::move(sparse));
  impl_->logging = impl_->reducer->facts();
  impl_->logging.module_name = module.name();
  impl_->logging.broadcast_buffers = options.broadcast_buffers;
  if (options.checks.level != Checks::kOff) {
    verify_module(communicator, module, impl_->ignored);
    impl_->watch.emplace(module, impl_->ignored, options.find_unused_parameters);
  }
  if (options.init_sync) {
    verify_parameters(communicator, impl_->reducer->parameters(), impl_->reducer->names());
    broadcast_states(0);
  }
}

DdpEngine::~DdpEngine() = default;

void DdpEngine::before_forward() {
  Impl& impl = *impl_;
  const bool has_gradients = at::GradMode::is_enabled();
  check_not_checkpointed_static(*impl.reducer, impl.communicator->rank());
  const bool synchronized = has_gradients && impl.synchronizes();
  if (synchronized) {
    if (is_sampled(impl.reducer->num_armed(), impl.options.logging_sample_rate)) {
      impl.reducer->sample(impl.logging);
    }
    if (!impl.step_is_given) {
      impl.step = impl.num_synchronized_forwards;
    }
    ++impl.num_synchronized_forwards;
  }
  if (impl.join.is_entered()) {
    impl.join.begin_forward({has_gradients, synchronized, impl.step});
  }
  impl.tell(EventKind::kForward, synchronized ? 1 : 0);
  if (impl.watch && impl.reducer->has_hooks()) {
    impl.watch->look(impl.module, impl.communicator->rank(), impl.step);
  }
  begin_collectives(has_gradients);
  if (synchronized && impl.watch) {
    check_replicas(/*has_inputs=*/true);
  }
}

void DdpEngine::begin_collectives(bool has_gradients) {
  Impl& impl = *impl_;
  impl.reducer->set_step(impl.step);
  const bool rebuilds = has_gradients && impl.reducer->rebuild_is_due();
  if (impl.join.is_entered() &&
      (rebuilds || impl.watch || impl.buffers_are_due(BufferHookPoint::kPreForward))) {
    impl.join.agree();
  }
  if (has_gradients) {
    impl.reducer->rebuild_buckets_if_due();
  }
  impl.reducer->wait_installed();
  sync_buffers(BufferHookPoint::kPreForward);
}

void DdpEngine::shadow_forward(const ForwardPlan& plan) {
  Impl& impl = *impl_;
  impl.step = plan.step;
  begin_collectives(plan.has_gradients);
  if (plan.synchronizes) {
    ++impl.num_synchronized_forwards;
    if (impl.watch) {
      check_replicas(/*has_inputs=*/false);
    }
  }
  sync_buffers(BufferHookPoint::kPostForward);
  impl.require_buffer_sync = plan.synchronizes;
  if (plan.synchronizes) {
    check_static_graph_is_known();
    impl.check_unused(nullptr);
    impl.reducer->reduce_zeros();
  }
}

// The rank that joins before the first iteration of a static graph would have no counts to go by
// when it trains again (L11).
void DdpEngine::check_static_graph_is_known() const {
  if (impl_->join.is_entered() && impl_->reducer->awaits_static_graph() &&
      impl_->join.some_joined()) {
    throw DdpError("join_static_graph",
                   fmt::format("rank {}: some rank has no input for the first synchronised "
                               "iteration, which records the static graph on every rank: give each "
                               "rank at least one batch, or leave static_graph off",
                               impl_->communicator->rank()));
  }
}

void DdpEngine::broadcast_states(std::int64_t root) {
  Impl& impl = *impl_;
  std::vector<at::Tensor> states = parameters_of(impl.module, impl.ignored).tensors;
  if (impl.options.broadcast_buffers) {
    const Selection buffers = buffers_of(impl.module, impl.ignored);
    states.insert(states.end(), buffers.tensors.begin(), buffers.tensors.end());
  }
  impl.broadcast(states, CallSite::kModuleStates, root);
}

void DdpEngine::check_replicas(bool has_inputs) {
  Impl& impl = *impl_;
  const CheckOptions& checks = impl.options.checks;
  const std::int64_t every = checks.level == Checks::kFull ? 1 : checks.replicas_every;
  if (every == 0 || (impl.num_synchronized_forwards - 1) % every != 0) {
    return;
  }
  ReplicaState state;
  state.is_compared = has_inputs;
  const auto add = [&](const Selection& selection) {
    for (std::size_t i = 0; i < selection.tensors.size(); ++i) {
      state.tensors.emplace_back(selection.names[i], selection.tensors[i]);
    }
  };
  add(parameters_of(impl.module, impl.ignored));
  if (impl.require_buffer_sync && impl.options.broadcast_buffers && impl.buffer_hook == nullptr) {
    add(buffers_of(impl.module, impl.ignored));  // else each rank's own
  }
  if (impl.checked_state != nullptr) {
    const auto extra = impl.checked_state();
    state.tensors.insert(state.tensors.end(), extra.begin(), extra.end());
  }
  verify_replicas(*impl.communicator, state, impl.step);
}

void DdpEngine::set_checked_state(CheckedState state) { impl_->checked_state = std::move(state); }

void DdpEngine::sync_buffers(BufferHookPoint point) {
  Impl& impl = *impl_;
  if (!impl.buffers_are_due(point)) {
    return;
  }
  const std::int64_t root = impl.join.is_entered() ? impl.join.buffer_source() : 0;
  // Collected anew because modules replace their buffers (J3).
  const Selection buffers = buffers_of(impl.module, impl.ignored);
  if (impl.buffer_hook == nullptr) {
    std::vector<std::uint32_t> versions;
    const bool may_be_saved = impl.watch && impl.reducer->graph_is_awaited();
    for (std::size_t i = 0; may_be_saved && i < buffers.tensors.size(); ++i) {
      versions.push_back(static_cast<std::uint32_t>(buffers.tensors[i]._version()));
    }
    impl.broadcast(buffers.tensors, CallSite::kBuffers, root);
    for (std::size_t i = 0; i < versions.size(); ++i) {
      if (static_cast<std::uint32_t>(buffers.tensors[i]._version()) != versions[i]) {
        throw impl.reducer->noted(
            buffer_changed(impl.communicator->rank(), impl.step, root, buffers.names[i]));
      }
    }
  } else {
    const at::NoGradGuard no_grad;
    std::map<std::string, at::Tensor> named;
    for (std::size_t i = 0; i < buffers.tensors.size(); ++i) {
      named.emplace(buffers.names[i], buffers.tensors[i]);
    }
    impl.reducer->install(impl.buffer_hook(named));
  }
  impl.tell(EventKind::kBuffersSynced);
}

bool DdpEngine::wants_output_tensors() const {
  return at::GradMode::is_enabled() && impl_->reducer->has_hooks() &&
         (impl_->watch || impl_->reducer->wants_sink(impl_->require_backward_sync));
}

void DdpEngine::after_forward(const std::vector<at::Tensor*>& outputs) {
  Impl& impl = *impl_;
  const bool wants_sink = at::GradMode::is_enabled() && impl.reducer->has_hooks() &&
                          impl.reducer->wants_sink(impl.require_backward_sync);
  std::function<std::int64_t()> divisor;  // the world size
  if (impl.join.is_entered()) {
    divisor = [by = impl.join.end_forward()] { return by; };
  }
  sync_buffers(BufferHookPoint::kPostForward);
  impl.require_buffer_sync = at::GradMode::is_enabled() && impl.synchronizes();
  if (impl.require_buffer_sync) {
    check_static_graph_is_known();
    impl.check_unused(&outputs);
    impl.reducer->divide_next_by(std::move(divisor));
    impl.reducer->arm(outputs);
  }
  if (wants_sink) {
    impl.reducer->attach_sink_to(outputs);
  }
  if (impl.watch && at::GradMode::is_enabled()) {
    if (impl.require_buffer_sync) {
      impl.reducer->watch_backward_of(outputs);
    } else {
      impl.reducer->expect_local_backward_of(outputs);
    }
  }
}

NoSyncGuard DdpEngine::no_sync() { return NoSyncGuard(*this); }

void DdpEngine::set_step(std::int64_t step) {
  LOCKSTEP_USAGE(step >= 0, "step {} is negative", step);
  impl_->step = step;
  impl_->step_is_given = true;
  impl_->reducer->set_step(step);
}

void DdpEngine::register_comm_hook(CommHook hook, const std::string& name) {
  impl_->reducer->register_comm_hook(std::move(hook), name);
}

void DdpEngine::register_buffer_hook(BufferHook hook, BufferHookPoint point) {
  LOCKSTEP_USAGE(hook != nullptr, "the buffer hook is empty");
  LOCKSTEP_USAGE(impl_->options.broadcast_buffers,
                 "a buffer hook is never called, because broadcast_buffers is off");
  if (impl_->buffer_hook != nullptr) {
    throw impl_->reducer->noted(
        DdpError("hook_registered_twice",
                 fmt::format("rank {}: there is a buffer hook already; a wrapper has one for life",
                             impl_->communicator->rank())));
  }
  impl_->buffer_hook = std::move(hook);
  impl_->buffer_point = point;
}

void DdpEngine::set_static_graph() { impl_->reducer->set_static_graph(); }

void DdpEngine::check_finalized() { impl_->reducer->check_finalized(); }

void DdpEngine::remove_hooks() {
  impl_->reducer->remove_hooks();
  impl_->require_buffer_sync = false;
}

void DdpEngine::set_communicator(Communicator& communicator) {
  impl_->communicator = &communicator;
  impl_->reducer->set_communicator(communicator);
  impl_->require_buffer_sync = true;
}

Joinable& DdpEngine::joinable() { return impl_->join; }

Communicator& DdpEngine::communicator() { return *impl_->communicator; }

DdpLoggingData DdpEngine::logging_data() const {
  DdpLoggingData data = impl_->logging;
  impl_->reducer->describe(data);
  return data;
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
  engine.impl_->reducer->set_no_sync(true);
}

NoSyncGuard::~NoSyncGuard() {
  engine_.impl_->require_backward_sync = previous_;
  engine_.impl_->reducer->set_no_sync(!previous_);
}

}  // namespace lockstep
