// SPDX-License-Identifier: Apache-2.0
// PyTorch's reducer, driven as DDP's Python layer drives it.
#include "harness/sync/torch_sync.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>

#include <algorithm>
#include <limits>
#include <mutex>

#include "core/check.h"
#include "core/ddp_sink.h"
#include "core/reducer_progress.h"
#include "core/torch_compat.h"
#include "harness/sync/communicator_process_group.h"
#include "harness/sync/libtorch_error.h"
#include "harness/sync/torch_reducer.h"

namespace lockstep::harness {
namespace {

// Note [When the peer's collectives are waited for]
// The reducer launches buckets from its hooks and waits for their futures in a callback that it
// queues on the backward in progress after the last launch (F6, F7). With the launch of the last
// bucket a callback of ours is queued just before; it waits for all buckets, in order, where the
// scheduler sees it, and what a wait throws comes out of backward. The first iteration of a static
// graph runs in such a callback itself and waits right after its last launch, so there the wait
// takes place in the launching call. Everything else that the reducer waits for, it waits for by
// `Work::wait`.

constexpr std::size_t kBroadcastCapBytes = std::size_t{250} << 20;

// Advice on efficiency ("did not find any unused parameters"), of no use to a judge.
class NoAdvice final : public c10::WarningHandler {
 public:
  void process(const c10::SourceLocation&, const std::string&, bool) override {}
};

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
        collected_(collect(parts)),
        progress_(static_cast<std::int64_t>(collected_.index.size())),
        group_(c10::make_intrusive<CommunicatorProcessGroup>(
            *parts.communicator,
            ProcessGroupCallbacks{
                [this](CollectiveKind kind) { return tag(kind); },
                [this](const CollectiveTag& tag, c10::intrusive_ptr<CommunicatorWork> work) {
                  on_launched(tag, std::move(work));
                }})) {
    if (ddp_.init_sync && !has_fault(parts, "no_initial_broadcast")) {
      synchronise_models();
    }
    add_hooks();  // before the reducer adds its own, so that they run first
    make_reducer();
    note_layout();
  }

  ~TorchSync() override {
    for (const auto& [accumulator, key] : hooks_) {
      compat::remove_post_hook(*accumulator, key);
    }
  }

  void begin_step(std::int64_t step) override { step_ = step; }

  std::vector<at::Tensor> forward(std::size_t, const at::Tensor& input, const Route& route,
                                  bool sync) override {
    const bool synchronized = sync && at::GradMode::is_enabled();
    before_forward(synchronized);
    std::vector<at::Tensor> outputs = parts_.model->forward(input, route);
    after_forward(outputs, synchronized);
    if (sync && plan_layout_ != progress_.layout()) {
      plan_layout_ = progress_.layout();
      const std::lock_guard<std::mutex> lock(plan_mutex_);
      plan_ = translate(*plan_layout_);
    }
    return outputs;
  }

  void after_backward(bool) override {}

  std::shared_ptr<const ReductionPlan> plan() const override {
    const std::lock_guard<std::mutex> lock(plan_mutex_);
    return plan_;
  }

  ReducerState state() const override {
    ReducerState state = progress_.state();
    for (std::int64_t& index : state.not_ready) {
      index = collected_.index[static_cast<std::size_t>(index)];
    }
    return state;
  }

 private:
  // A6 in the order of LibTorch up to 2.0: buffers are always broadcast here (B8).
  void synchronise_models() {
    site_ = CallSite::kParamCount;
    c10d::verify_params_across_processes(group_, collected_.parameters.tensors, {});
    std::vector<at::Tensor> states;
    const auto append = [&](const NamedParameters& named) {
      for (std::size_t i = 0; i < named.names.size(); ++i) {
        if (!is_ignored(parts_, named.names[i])) {
          states.push_back(named.tensors[i].detach());
        }
      }
    };
    append(all_parameters(*parts_.model));
    append(all_buffers(*parts_.model));
    broadcast(states, CallSite::kModuleStates);
  }

  void broadcast(const std::vector<at::Tensor>& tensors, CallSite site) {
    const at::NoGradGuard no_grad;
    site_ = site;
    position_ = 0;
    c10d::broadcast_coalesced(group_, tensors, kBroadcastCapBytes, 0);
  }

  void add_hooks() {
    for (std::size_t i = 0; i < collected_.index.size(); ++i) {
      auto accumulator = compat::grad_accumulator(collected_.parameters.tensors[i]);
      const std::uintptr_t key = compat::add_post_hook(
          *accumulator, std::make_unique<torch::autograd::utils::LambdaPostHook>(
                            [this, i](const torch::autograd::variable_list& outputs,
                                      const torch::autograd::variable_list&) {
                              on_gradient(i);
                              return outputs;
                            }));
      hooks_.emplace_back(std::move(accumulator), key);
    }
  }

  // C11, C12.
  void make_reducer() {
    const auto first_cap = std::min(ddp_.first_bucket_cap_bytes, ddp_.bucket_cap_bytes);
    std::vector<std::size_t> limits = {std::numeric_limits<int>::max()};
    if (ddp_.find_unused_parameters && !ddp_.static_graph) {
      limits = {static_cast<std::size_t>(first_cap),
                static_cast<std::size_t>(ddp_.bucket_cap_bytes)};
    }
    const std::vector<bool> expect_sparse(collected_.index.size(), false);
    auto [buckets, bucket_limits] = c10d::compute_bucket_assignment_by_size(
        collected_.parameters.tensors, limits, expect_sparse);
    std::reverse(buckets.begin(), buckets.end());
    std::reverse(bucket_limits.begin(), bucket_limits.end());
    std::unordered_map<std::size_t, std::string> names;
    for (std::size_t i = 0; i < collected_.parameters.names.size(); ++i) {
      names[i] = collected_.parameters.names[i];
    }
    reducer_ = std::make_shared<TorchReducer>(
        collected_.parameters.tensors, std::move(buckets), std::move(bucket_limits), group_,
        expect_sparse, ddp_.bucket_cap_bytes, ddp_.find_unused_parameters,
        ddp_.gradient_as_bucket_view, std::move(names), first_cap);
    // The reducer uses its logger without asking whether there is one.
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    logger_->set_construction_data_and_log("GraphModel", {}, -1, ddp_.broadcast_buffers, false,
                                           ddp_.static_graph);
    reducer_->set_logger(logger_);
    if (ddp_.static_graph) {
      reducer_->set_static_graph();
    }
  }

  // E1 to E4.
  void before_forward(bool synchronized) {
    if (synchronized) {
      ++num_synchronized_forwards_;
      reducer_->prepare_for_forward();
    }
    tell(EventKind::kForward, synchronized ? 1 : 0);
    if (at::GradMode::is_enabled()) {
      rebuild_buckets();
    }
    const NamedParameters buffers = all_buffers(*parts_.model);  // anew each time (J3)
    if (requires_buffer_sync_ && broadcasts_buffers_ && !buffers.tensors.empty()) {
      broadcast(buffers.tensors, CallSite::kBuffers);
      tell(EventKind::kBuffersSynced);
    }
  }

  void rebuild_buckets() {
    site_ = CallSite::kRebuildOrder;
    bool rebuilt = false;
    try {
      rebuilt = reducer_->rebuild_buckets();
    } catch (const c10::Error& error) {
      throw with_names(error);
    }
    if (rebuilt) {
      note_layout();
      tell(EventKind::kRebuilt, static_cast<std::int64_t>(reducer_->num_buckets()));
    }
  }

  // The reducer numbers the parameters that were not ready and names them only where an
  // environment variable asks for it (K1).
  DdpError with_names(const c10::Error& error) const {
    std::vector<std::string> missing;
    for (const std::int64_t index : progress_.state().not_ready) {
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
      num_launched_ = 0;
      has_marked_unused_ = false;
      in_flight_.clear();
      progress_.arm();
      NoAdvice no_advice;
      const compat::warning::WarningHandlerGuard guard(&no_advice);
      reducer_->prepare_for_backward(finds_unused ? outputs : std::vector<at::Tensor>());
    }
    const bool reduces_late = ddp_.static_graph && num_synchronized_forwards_ == 1;
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
        if (reduces_late) {
          compat::queue_callback([this] { reduce_late(); });
        }
      });
    }
  }

  // L3.
  void reduce_late() {
    is_late_ = true;
    reducer_->delay_all_reduce();
    is_late_ = false;
    on_finalized();
  }

  void on_gradient(std::size_t parameter) {
    if (reducer_ == nullptr || !reducer_->armed() || reducer_->is_static_first()) {
      return;
    }
    if (!has_marked_unused_) {
      has_marked_unused_ = true;
      mark_ready(reducer_->unused(), EventKind::kUnusedMarked);
    }
    if (reducer_->completes(parameter)) {
      mark_ready({parameter}, EventKind::kGradientReady);
    }
  }

  void mark_ready(const std::vector<std::size_t>& parameters, EventKind kind) {
    for (const std::size_t parameter : parameters) {
      progress_.mark_ready(static_cast<std::int64_t>(parameter));
      tell(kind, static_cast<std::int64_t>(parameter));
    }
  }

  CollectiveTag tag(CollectiveKind kind) {
    switch (kind) {
      case CollectiveKind::kAllReduce: {
        // The used map follows the buckets, but for the first iteration of a static graph (L3).
        const std::int64_t bucket = num_launched_++ - (is_late_ ? 1 : 0);
        const auto num_buckets = static_cast<std::int64_t>(reducer_->num_buckets());
        if (bucket < 0 || bucket >= num_buckets) {
          return {CallSite::kUsedMap, step_, -1};
        }
        return {CallSite::kBucket, step_, bucket};
      }
      case CollectiveKind::kBroadcast:
        return broadcast_tag();
      case CollectiveKind::kAllGather:
        site_ = CallSite::kParamShapes;  // comes next
        return {CallSite::kParamCount, -1, -1};
      case CollectiveKind::kBarrier:
        break;
    }
    return {CallSite::kBarrier, step_, -1};
  }

  CollectiveTag broadcast_tag() {
    const CallSite site = site_;
    switch (site) {
      case CallSite::kRebuildOrder:
        site_ = CallSite::kRebuildSizes;  // comes next
        return {site, step_, -1};
      case CallSite::kRebuildSizes:
        return {site, step_, -1};
      case CallSite::kParamShapes:
        return {site, -1, -1};
      default:
        return {site, site == CallSite::kModuleStates ? -1 : step_, position_++};
    }
  }

  // See Note [When the peer's collectives are waited for].
  void on_launched(const CollectiveTag& tag, c10::intrusive_ptr<CommunicatorWork> work) {
    if (tag.site != CallSite::kBucket) {
      return;
    }
    in_flight_.push_back(std::move(work));
    if (is_late_ && tag.bucket == 0) {
      mark_ready(reducer_->unused(), EventKind::kUnusedMarked);
      mark_ready(others(reducer_->unused()), EventKind::kGradientReady);
    }
    progress_.launched(tag.bucket + 1);
    tell(EventKind::kBucketLaunched, tag.bucket);
    if (in_flight_.size() < reducer_->num_buckets()) {
      return;
    }
    if (is_late_) {
      complete_buckets();
    } else {
      compat::queue_callback([this] {
        complete_buckets();
        compat::queue_callback([this] { on_finalized(); });  // runs after the reducer's own
      });
    }
  }

  std::vector<std::size_t> others(const std::vector<std::size_t>& parameters) const {
    std::vector<std::size_t> result;
    for (std::size_t i = 0; i < collected_.index.size(); ++i) {
      if (std::find(parameters.begin(), parameters.end(), i) == parameters.end()) {
        result.push_back(i);
      }
    }
    return result;
  }

  void complete_buckets() {
    for (const auto& work : in_flight_) {
      work->complete();
    }
    in_flight_.clear();
  }

  void on_finalized() {
    progress_.finalized();
    tell(EventKind::kFinalized);
  }

  void note_layout() {
    progress_.set_layout(std::make_shared<const BucketLayout>(reducer_->layout()));
  }

  // Plans speak of all trainable parameters; the reducer's indices leave the ignored ones out.
  std::shared_ptr<const ReductionPlan> translate(const BucketLayout& layout) const {
    ReductionPlan plan;
    plan.buckets = layout.buckets;
    for (auto& bucket : plan.buckets) {
      for (std::int64_t& index : bucket) {
        index = collected_.index[static_cast<std::size_t>(index)];
      }
    }
    return std::make_shared<const ReductionPlan>(std::move(plan));
  }

  void tell(EventKind kind, std::int64_t index = -1) {
    if (parts_.observer != nullptr) {
      parts_.observer->on_event({kind, index});
    }
  }

  const DdpSpec ddp_;
  const SyncParts parts_;
  const bool broadcasts_buffers_;
  const Collected collected_;
  ReducerProgress progress_;

  CallSite site_ = CallSite::kParamCount;  // of the next broadcast
  std::int64_t position_ = 0;              // of the next coalesced broadcast
  std::int64_t step_ = -1;
  std::int64_t num_launched_ = 0;  // all_reduces of this iteration
  std::int64_t num_synchronized_forwards_ = 0;
  bool is_late_ = false;  // inside delay_all_reduce
  bool has_marked_unused_ = false;
  bool requires_buffer_sync_ = true;
  std::vector<c10::intrusive_ptr<CommunicatorWork>> in_flight_;

  c10::intrusive_ptr<CommunicatorProcessGroup> group_;
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, std::uintptr_t>> hooks_;
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
