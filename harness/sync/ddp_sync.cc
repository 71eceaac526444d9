// SPDX-License-Identifier: Apache-2.0
// The subject `ddp`: our DistributedDataParallel around the case's model.
#include "harness/sync/ddp_sync.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "core/check.h"
#include "core/comm_hooks.h"
#include "core/distributed_data_parallel.h"
#include "core/power_sgd_hook.h"
#include "harness/disturbances.h"
#include "harness/trainer.h"

namespace lockstep::harness {
namespace {

DdpOptions options_of(const SyncParts& parts) {
  const DdpSpec& ddp = parts.value->ddp;
  DdpOptions options;
  options.first_bucket_cap_bytes = ddp.first_bucket_cap_bytes;
  options.bucket_cap_bytes = ddp.bucket_cap_bytes;
  options.gradient_as_bucket_view = ddp.gradient_as_bucket_view;
  options.find_unused_parameters = ddp.find_unused_parameters;
  options.static_graph = ddp.static_graph;
  options.broadcast_buffers = ddp.broadcast_buffers;
  options.init_sync = ddp.init_sync;
  options.ignored = parts.ignored;
  options.sparse = sparse_parameters(parts.value->model);
  if (ddp.checks != "off") {
    options.checks.level = ddp.checks == "full" ? Checks::kFull : Checks::kFast;
    // A scenario is short: look at the replicas in every step.
    options.checks.replicas_every = 1;
  }
  options.observer = parts.observer;
  for (const FaultSpec& fault : parts.value->faults) {
    if (fault.kind == "no_initial_broadcast") {
      options.init_sync = false;
    } else if (fault.kind == "buffers_not_synced") {
      options.broadcast_buffers = false;
    }
  }
  return options;
}

CommHook hook_of(const std::string& name, Communicator& communicator) {
  if (name == "all_reduce") {
    return all_reduce_hook(communicator);
  }
  if (name == "fp16_compress") {
    return fp16_compress_hook(communicator);
  }
  if (name == "bf16_compress") {
    return bf16_compress_hook(communicator);
  }
  if (name == "noop") {
    return noop_hook();
  }
  if (name == "quantize_per_tensor") {
    return quantize_per_tensor_hook(communicator);
  }
  if (name == "quantize_per_channel") {
    return quantize_per_channel_hook(communicator);
  }
  if (name == "power_sgd") {
    return power_sgd_hook(communicator);
  }
  if (name == "all_reduce_copy") {
    return [hook = all_reduce_hook(communicator)](GradBucket bucket) {
      bucket.buffer = bucket.buffer.clone();
      return hook(bucket);
    };
  }
  LOCKSTEP_CHECK(name == "post_local_sgd", "no hook is called {}", name);
  return post_local_sgd_hook(communicator, {/*start_iter=*/1, /*subgroup=*/nullptr});
}

// The hook with the mistakes that are planted into it.
CommHook spoiled(CommHook hook, const SyncParts& parts) {
  const std::vector<FaultSpec>& all = parts.value->faults;
  std::vector<std::size_t> faults;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if ((all[i].kind == "hook_raises" || all[i].kind == "hook_result") &&
        covers(all[i].ranks, parts.communicator->rank())) {
      faults.push_back(i);
    }
  }
  if (faults.empty()) {
    return hook;
  }
  return [hook = std::move(hook), faults, parts](const GradBucket& bucket) {
    PendingTensor result = hook(bucket);
    for (const std::size_t index : faults) {
      const FaultSpec& fault = parts.value->faults[index];
      if (!covers(fault.steps, bucket.tag.step)) {
        continue;
      }
      if (parts.disturbances != nullptr) {
        parts.disturbances->note_fault(index);
      }
      if (fault.kind == "hook_raises") {
        throw ScriptError(fmt::format("the hook failed for bucket {}", bucket.index));
      }
      result = std::move(result).then([](const at::Tensor& tensor) {
        return tensor.reshape({-1}).narrow(0, 0, tensor.numel() - 1);
      });
    }
    return result;
  };
}

JoinOptions join_options_of(const std::string& join) {
  JoinOptions options;
  options.enable = join != "off";
  options.throw_on_early_termination = join == "throw";
  options.divide_by_initial_world_size = join != "divide_by_active";
  return options;
}

class DdpSync final : public GradientSync {
 public:
  explicit DdpSync(const SyncParts& parts)
      : ddp_(parts.model, *parts.communicator, options_of(parts)),
        join_options_(join_options_of(join_of(*parts.value))) {
    const std::string& hook = parts.value->ddp.hook;
    if (hook != "none") {
      ddp_.register_comm_hook(spoiled(hook_of(hook, *parts.communicator), parts), hook);
    }
    const std::vector<std::string> all = trainable_parameters(*parts.model).names;
    for (const std::string& name : ddp_.engine().parameter_names()) {
      trainable_index_.push_back(std::find(all.begin(), all.end(), name) - all.begin());
    }
  }

  void run(const std::function<void()>& loop) override { ddp_.join(loop, join_options_); }

  void begin_step(std::int64_t step) override { ddp_.set_step(step); }

  std::vector<std::vector<at::Tensor>> forward(const std::vector<ReplicaInput>& inputs,
                                               bool sync) override {
    const at::Tensor& input = inputs.front().input;
    const Route& route = *inputs.front().route;
    if (sync) {
      auto outputs = ddp_.forward(input, route);
      const auto layout = ddp_.engine().bucket_layout();
      if (layout != layout_) {
        layout_ = layout;
        const std::lock_guard<std::mutex> lock(plan_mutex_);
        plan_ = plan_of(*layout, trainable_index_);
      }
      return {outputs};
    }
    const NoSyncGuard guard = ddp_.no_sync();
    return {ddp_.forward(input, route)};
  }

  void after_backward(bool) override {}

  std::shared_ptr<const ReductionPlan> plan() const override {
    const std::lock_guard<std::mutex> lock(plan_mutex_);
    return plan_;
  }

  ReducerState state() const override {
    ReducerState state = ddp_.engine().state();
    for (std::int64_t& index : state.not_ready) {
      index = trainable_index_[static_cast<std::size_t>(index)];
    }
    return state;
  }

 private:
  DistributedDataParallel<GraphModel> ddp_;
  JoinOptions join_options_;
  std::vector<std::int64_t> trainable_index_;
  std::shared_ptr<const BucketLayout> layout_;
  mutable std::mutex plan_mutex_;
  std::shared_ptr<const ReductionPlan> plan_;
};

}  // namespace

std::unique_ptr<GradientSync> make_ddp_sync(const SyncParts& parts) {
  return std::make_unique<DdpSync>(parts);
}

}  // namespace lockstep::harness
