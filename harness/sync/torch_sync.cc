// SPDX-License-Identifier: Apache-2.0
// PyTorch's reducer, driven as DDP's Python layer drives it.
#include "harness/sync/torch_sync.h"

#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>

#include <algorithm>
#include <limits>
#include <mutex>
#include <tuple>

#include "core/check.h"
#include "core/ddp_sink.h"
#include "core/libtorch_version.h"
#include "core/torch_compat.h"
#include "harness/sync/libtorch_error.h"
#include "harness/sync/torch_join.h"
#include "harness/sync/torch_watch.h"

namespace lockstep::harness {
namespace {

constexpr std::size_t kBroadcastCapBytes = std::size_t{250} << 20;

// The log on standard error ("hook ALLREDUCE is registered"), of no use to a judge.
void log_warnings_only() {
#ifdef LOCKSTEP_WITH_GLOG
  FLAGS_minloglevel = std::max<int>(FLAGS_minloglevel, google::GLOG_WARNING);
#endif
}

struct Collected {
  NamedParameters parameters;       // the reducer's, in index order (A1)
  std::vector<std::int64_t> index;  // of each among all trainable ones
};

bool is_ignored(const SyncParts& parts, const std::string& name) {
  return std::find(parts.ignored.begin(), parts.ignored.end(), name) != parts.ignored.end();
}

Collected collect(const SyncParts& parts) {
  Collected result;
  const NamedParameters all = trainable_parameters(*parts.model);
  for (std::size_t i = 0; i < all.names.size(); ++i) {
    if (!is_ignored(parts, all.names[i])) {
      result.parameters.names.push_back(all.names[i]);
      result.parameters.tensors.push_back(all.tensors[i]);
      result.index.push_back(static_cast<std::int64_t>(i));
    }
  }
  LOCKSTEP_USAGE(!result.index.empty(),
                 "the module has no parameter that requires a gradient: nothing to synchronise");
  return result;
}

bool has_fault(const SyncParts& parts, const char* kind) {
  return std::any_of(parts.value->faults.begin(), parts.value->faults.end(),
                     [&](const FaultSpec& fault) { return fault.kind == kind; });
}

class TorchSync final : public GradientSync {
 public:
  explicit TorchSync(const SyncParts& parts)
      : ddp_(parts.value->ddp),
        parts_(parts),
        broadcasts_buffers_(ddp_.broadcast_buffers && !has_fault(parts, "buffers_not_synced")),
        has_buffers_(!all_buffers(*parts.model).tensors.empty()),
        collected_(collect(parts)),
        join_(join_of(*parts.value), *parts.communicator),
        watch_(*parts.communicator, parts.observer, collected_.parameters.tensors) {
    if (ddp_.init_sync && !has_fault(parts, "no_initial_broadcast")) {
      synchronise_models();
    }
    make_reducer();
    watch_.watch(reducer_);
  }

  void run(const std::function<void()>& loop) override {
    join_.run(loop, {[this] { shadow_iteration(); },
                     [this](std::int64_t root) { broadcast_states(root); }});
  }

  void begin_step(std::int64_t step) override {
    step_ = step;
    watch_.set_step(step);
  }

  std::vector<std::vector<at::Tensor>> forward(const std::vector<ReplicaInput>& inputs,
                                               bool sync) override {
    const bool synchronized = sync && at::GradMode::is_enabled();
    before_forward(sync);
    std::vector<at::Tensor> outputs =
        parts_.model->forward(inputs.front().input, *inputs.front().route);
    after_forward(outputs, synchronized);
    if (sync && plan_layout_ != watch_.progress().layout()) {
      plan_layout_ = watch_.progress().layout();
      const std::lock_guard<std::mutex> lock(plan_mutex_);
      plan_ = plan_of(*plan_layout_, collected_.index);
    }
    return {std::move(outputs)};
  }

  void after_backward(bool) override {}

  std::shared_ptr<const ReductionPlan> plan() const override {
    const std::lock_guard<std::mutex> lock(plan_mutex_);
    return plan_;
  }

  ReducerState state() const override {
    ReducerState state = watch_.progress().state();
    for (std::int64_t& index : state.not_ready) {
      index = collected_.index[static_cast<std::size_t>(index)];
    }
    return state;
  }

 private:
  // A6. Up to 2.0 buffers are always broadcast here (B8).
  void synchronise_models() {
    watch_.expect(CallSite::kParamCount);
    c10d::verify_params_across_processes(watch_.group(), collected_.parameters.tensors, {});
    broadcast_states(0);
  }

  void broadcast_states(std::int64_t root) {
    std::vector<at::Tensor> states;
    const auto append = [&](const NamedParameters& named) {
      for (std::size_t i = 0; i < named.names.size(); ++i) {
        if (!is_ignored(parts_, named.names[i])) {
          states.push_back(named.tensors[i].detach());
        }
      }
    };
    append(all_parameters(*parts_.model));
    if (broadcasts_buffers_ || kLibTorch < LibTorchVersion{2, 1}) {
      append(all_buffers(*parts_.model));
    }
    broadcast(states, CallSite::kModuleStates, root);
  }

  void broadcast(const std::vector<at::Tensor>& tensors, CallSite site, std::int64_t root) {
    const at::NoGradGuard no_grad;
    watch_.expect(site);
    c10d::broadcast_coalesced(watch_.group(), tensors, kBroadcastCapBytes, static_cast<int>(root));
  }

  // C11, C12.
  void make_reducer() {
    const auto first_cap = std::min(ddp_.first_bucket_cap_bytes, ddp_.bucket_cap_bytes);
    std::vector<std::size_t> limits = {std::numeric_limits<int>::max()};
    if (ddp_.find_unused_parameters && !ddp_.static_graph) {
      limits = {static_cast<std::size_t>(first_cap),
                static_cast<std::size_t>(ddp_.bucket_cap_bytes)};
    }
    TorchReducerParts parts;
    parts.parameters = collected_.parameters.tensors;
    const std::vector<std::string> sparse = sparse_parameters(parts_.value->model);
    for (const std::string& name : collected_.parameters.names) {
      parts.expect_sparse.push_back(std::find(sparse.begin(), sparse.end(), name) != sparse.end());
    }
    std::tie(parts.bucket_indices, parts.per_bucket_size_limits) =
        c10d::compute_bucket_assignment_by_size(parts.parameters, limits, parts.expect_sparse);
    std::reverse(parts.bucket_indices.begin(), parts.bucket_indices.end());
    std::reverse(parts.per_bucket_size_limits.begin(), parts.per_bucket_size_limits.end());
    for (std::size_t i = 0; i < collected_.parameters.names.size(); ++i) {
      parts.names[i] = collected_.parameters.names[i];
    }
    parts.group = watch_.group();
    parts.bucket_bytes_cap = ddp_.bucket_cap_bytes;
    parts.first_bucket_bytes_cap = first_cap;
    parts.find_unused_parameters = ddp_.find_unused_parameters;
    parts.gradient_as_bucket_view = ddp_.gradient_as_bucket_view;
    reducer_ = std::make_shared<TorchReducer>(std::move(parts));
    // The reducer uses its logger without asking whether there is one.
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    logger_->set_construction_data_and_log("GraphModel", {}, -1, ddp_.broadcast_buffers, false,
                                           ddp_.static_graph);
    reducer_->set_logger(logger_);
    if (ddp_.static_graph) {
      reducer_->set_static_graph();
    }
    if (ddp_.hook != "none") {
      log_warnings_only();
      reducer_->register_builtin_comm_hook(ddp_.hook == "all_reduce"
                                               ? c10d::BuiltinCommHookType::ALLREDUCE
                                               : c10d::BuiltinCommHookType::FP16_COMPRESS);
    }
  }

  // E1 to E5. `sync`: not inside no_sync.
  void before_forward(bool sync) {
    const bool synchronized = sync && at::GradMode::is_enabled();
    next_step_ = step_ + 1;
    if (synchronized) {
      ++num_synchronized_forwards_;
      reducer_->prepare_for_forward();
    }
    if (join_.is_on()) {
      reducer_->set_forward_pass_work_handle(join_.notify(), join_.divides_by_initial());
    }
    watch_.tell(EventKind::kForward, synchronized ? 1 : 0);
    if (at::GradMode::is_enabled()) {
      rebuild_buckets();
    }
    synchronise_buffers(/*is_active=*/true);
    if (join_.is_on()) {
      join_.announce(sync);
    }
  }

  void synchronise_buffers(bool is_active) {
    if (requires_buffer_sync_ && broadcasts_buffers_ && has_buffers_) {
      const NamedParameters buffers = all_buffers(*parts_.model);  // anew each time (J3)
      broadcast(buffers.tensors, CallSite::kBuffers,
                join_.is_on() ? join_.highest_rank(is_active) : 0);
      watch_.tell(EventKind::kBuffersSynced);
    }
  }

  // Joined ranks. The others' step is not told to them: it follows from the number of forwards.
  void shadow_iteration() {
    watch_.set_step(next_step_ + num_shadowed_++ / parts_.value->train.micro_batches);
    rebuild_buckets();
    synchronise_buffers(/*is_active=*/false);
    requires_buffer_sync_ = join_.anyone_synchronizes();
    if (!requires_buffer_sync_) {
      return;
    }
    at::Tensor used_map;
    if (ddp_.find_unused_parameters) {
      used_map = reducer_->get_local_used_map_on_device();
      if (num_synchronized_forwards_ == 0 && !has_shadowed_reduction_) {
        used_map.zero_();  // uninitialised memory until then: no two runs would be alike
      }
    }
    has_shadowed_reduction_ = true;
    watch_.reduce_zeros(used_map);
    reducer_->push_rebuilt_params_for_all_indices();
  }

  void rebuild_buckets() {
    watch_.expect(CallSite::kRebuildOrder);
    bool rebuilt = false;
    try {
      rebuilt = reducer_->rebuild_buckets();
    } catch (const c10::Error& error) {
      throw with_names(error);
    }
    if (rebuilt) {
      watch_.note_layout();
      watch_.tell(EventKind::kRebuilt, static_cast<std::int64_t>(reducer_->num_buckets()));
    }
  }

  // The reducer numbers the parameters that were not ready and names them only where an
  // environment variable asks for it (K1).
  DdpError with_names(const c10::Error& error) const {
    std::vector<std::string> missing;
    for (const std::int64_t index : watch_.progress().state().not_ready) {
      missing.push_back(collected_.parameters.names[static_cast<std::size_t>(index)]);
    }
    const std::string text = error.what_without_backtrace();
    return DdpError(libtorch_error_kind(text),
                    fmt::format("{} (not ready: {})", text, fmt::join(missing, ", ")), missing);
  }

  // E8, E9, J4.
  void after_forward(std::vector<at::Tensor>& outputs, bool synchronized) {
    const bool finds_unused = ddp_.find_unused_parameters && !ddp_.static_graph;
    requires_buffer_sync_ = synchronized;
    if (synchronized) {
      watch_.arm();
      // Of advice on efficiency ("did not find any unused parameters"), of no use to a judge.
      const compat::NoWarnings silence;
      reducer_->prepare_for_backward(finds_unused ? outputs : std::vector<at::Tensor>());
    }
    // L8: up to 2.0 while the first forward counts as the last; later until it was once queued.
    const bool reduces_late =
        ddp_.static_graph &&
        (kLibTorch < LibTorchVersion{2, 1} ? num_synchronized_forwards_ == 1 : !has_queued_late_);
    if (!finds_unused && !reduces_late) {
      return;
    }
    std::vector<at::Tensor*> tracked;
    for (at::Tensor& output : outputs) {
      if (output.grad_fn() != nullptr) {
        tracked.push_back(&output);
      }
    }
    if (!tracked.empty()) {
      attach_sink(tracked, [this, reduces_late] {
        if (reduces_late && (kLibTorch < LibTorchVersion{2, 1} || !has_queued_late_)) {
          has_queued_late_ = true;
          compat::queue_callback([this] { watch_.reduce_late(); });
        }
      });
    }
  }

  const DdpSpec ddp_;
  const SyncParts parts_;
  const bool broadcasts_buffers_;
  const bool has_buffers_;  // when it was wrapped (J1)
  const Collected collected_;
  TorchJoin join_;
  std::int64_t num_synchronized_forwards_ = 0;
  bool has_queued_late_ = false;  // a static graph's first reduction
  std::int64_t step_ = -1;
  std::int64_t next_step_ = 0;     // after the last one with a forward
  std::int64_t num_shadowed_ = 0;  // iterations
  bool has_shadowed_reduction_ = false;
  bool requires_buffer_sync_ = true;
  TorchWatch watch_;
  std::shared_ptr<TorchReducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;

  std::shared_ptr<const BucketLayout> plan_layout_;
  mutable std::mutex plan_mutex_;
  std::shared_ptr<const ReductionPlan> plan_;
};

}  // namespace

std::unique_ptr<GradientSync> make_torch_sync(const SyncParts& parts) {
  return std::make_unique<TorchSync>(parts);
}

}  // namespace lockstep::harness
