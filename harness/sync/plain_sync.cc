// SPDX-License-Identifier: Apache-2.0
// Synchronisation after backward: per parameter, flat, or none at all.
#include "harness/sync/plain_sync.h"

#include <torch/types.h>

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "harness/snapshot.h"

namespace lockstep::harness {
namespace {

class PlainSync final : public GradientSync {
 public:
  explicit PlainSync(const SyncParts& parts)
      : kind_(parts.value->ddp.sync),
        broadcast_buffers_(parts.value->ddp.broadcast_buffers),
        model_(parts.model),
        communicator_(*parts.communicator),
        observer_(parts.observer),
        parameters_(trainable_parameters(*parts.model)) {
    bool initial_broadcast = parts.value->ddp.init_sync;
    for (const FaultSpec& fault : parts.value->faults) {
      initial_broadcast = initial_broadcast && fault.kind != "no_initial_broadcast";
      broadcast_buffers_ = broadcast_buffers_ && fault.kind != "buffers_not_synced";
    }
    if (initial_broadcast) {
      broadcast(all_parameters(*model_).tensors, CallSite::kModuleStates);
      broadcast(all_buffers(*model_).tensors, CallSite::kModuleStates);
    }
    make_plan(parts.ignored);
  }

  void run(const std::function<void()>& loop) override { loop(); }

  void begin_step(std::int64_t step) override { step_ = step; }

  std::vector<std::vector<at::Tensor>> forward(const std::vector<ReplicaInput>& inputs,
                                               bool sync) override {
    if (observer_ != nullptr) {
      observer_->on_event({EventKind::kForward, sync ? 1 : 0});
    }
    if (broadcast_buffers_ && last_forward_synced_) {
      broadcast(all_buffers(*model_).tensors, CallSite::kBuffers);
    }
    last_forward_synced_ = sync && at::GradMode::is_enabled();
    return {model_->forward(inputs.front().input, *inputs.front().route)};
  }

  void after_backward(bool sync) override {
    if (!sync) {
      return;
    }
    if (kind_ == "none") {
      communicator_.barrier({CallSite::kBarrier, step_, -1})->wait();
      return;
    }
    const at::NoGradGuard no_grad;
    const double world_size = static_cast<double>(communicator_.world_size());
    for (std::size_t b = 0; b < plan_->buckets.size(); ++b) {
      const auto& bucket = plan_->buckets[b];
      std::vector<at::Tensor> pieces;
      for (const std::int64_t index : bucket) {
        const at::Tensor& parameter = parameters_.tensors[static_cast<std::size_t>(index)];
        const at::Tensor& grad = parameter.grad();
        const at::Tensor own = grad.defined() ? grad : at::zeros_like(parameter);
        pieces.push_back(elements_of(own).reshape({-1}));
      }
      at::Tensor flat = pieces.size() == 1 ? pieces.front().clone() : at::cat(pieces);
      const auto site = kind_ == "flat" ? CallSite::kBucket : CallSite::kParameter;
      communicator_.all_reduce(flat, ReduceOp::kSum, {site, step_, static_cast<std::int64_t>(b)})
          ->wait();
      flat.div_(world_size);
      scatter(bucket, flat);
    }
  }

  std::shared_ptr<const ReductionPlan> plan() const override { return plan_; }
  ReducerState state() const override { return {}; }

 private:
  void make_plan(const std::vector<std::string>& ignored) {
    ReductionPlan plan;
    plan.division = Division::kAfter;
    for (std::size_t i = 0; i < parameters_.names.size(); ++i) {
      if (std::find(ignored.begin(), ignored.end(), parameters_.names[i]) != ignored.end()) {
        continue;
      }
      const auto same_dtype = [&](const std::vector<std::int64_t>& bucket) {
        return parameters_.tensors[static_cast<std::size_t>(bucket.front())].scalar_type() ==
               parameters_.tensors[i].scalar_type();
      };
      auto bucket = std::find_if(plan.buckets.begin(), plan.buckets.end(), same_dtype);
      if (kind_ == "per_parameter" || bucket == plan.buckets.end()) {
        bucket = plan.buckets.emplace(plan.buckets.end());
      }
      bucket->push_back(static_cast<std::int64_t>(i));
    }
    plan_ = std::make_shared<const ReductionPlan>(std::move(plan));
  }

  void scatter(const std::vector<std::int64_t>& bucket, const at::Tensor& flat) {
    std::int64_t offset = 0;
    for (const std::int64_t index : bucket) {
      at::Tensor& parameter = parameters_.tensors[static_cast<std::size_t>(index)];
      if (!parameter.grad().defined()) {
        parameter.mutable_grad() = at::empty_like(parameter).detach();
      }
      const at::Tensor elements = elements_of(parameter.mutable_grad());
      elements.copy_(flat.narrow(0, offset, elements.numel()).view(elements.sizes()));
      offset += elements.numel();
    }
  }

  void broadcast(const std::vector<at::Tensor>& tensors, CallSite site) {
    const at::NoGradGuard no_grad;
    std::vector<std::unique_ptr<Work>> works;
    for (const at::Tensor& tensor : tensors) {
      works.push_back(communicator_.broadcast(tensor.detach(), 0, {site, step_, -1}));
    }
    for (const auto& work : works) {
      work->wait();
    }
  }

  std::string kind_;
  bool broadcast_buffers_;
  bool last_forward_synced_ = true;
  std::shared_ptr<GraphModel> model_;
  Communicator& communicator_;  // outlives this: see SyncParts
  Observer* observer_;          // outlives this: see SyncParts
  NamedParameters parameters_;
  std::shared_ptr<const ReductionPlan> plan_;
  std::int64_t step_ = -1;
};

}  // namespace

std::unique_ptr<GradientSync> make_plain_sync(const SyncParts& parts) {
  return std::make_unique<PlainSync>(parts);
}

}  // namespace lockstep::harness
