// SPDX-License-Identifier: Apache-2.0
// Tags, waits and events of PyTorch's reducer.
#include "harness/sync/torch_watch.h"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>

#include <algorithm>
#include <set>

#include "core/torch_compat.h"

namespace lockstep::harness {

TorchWatch::TorchWatch(Communicator& communicator, Observer* observer,
                       const std::vector<at::Tensor>& parameters)
    : observer_(observer),
      progress_(static_cast<std::int64_t>(parameters.size())),
      group_(c10::make_intrusive<CommunicatorProcessGroup>(
          communicator, ProcessGroupCallbacks{[this](CollectiveKind kind) { return tag(kind); },
                                              [this](const CollectiveTag& tag,
                                                     c10::intrusive_ptr<CommunicatorWork> work) {
                                                on_launched(tag, std::move(work));
                                              }})) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto accumulator = compat::grad_accumulator(parameters[i]);
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

TorchWatch::~TorchWatch() {
  for (const auto& [accumulator, key] : hooks_) {
    compat::remove_post_hook(*accumulator, key);
  }
}

void TorchWatch::watch(std::shared_ptr<TorchReducer> reducer) {
  reducer_ = std::move(reducer);
  note_layout();
}

void TorchWatch::expect(CallSite site) {
  site_ = site;
  position_ = 0;
}

void TorchWatch::note_layout() {
  progress_.set_layout(std::make_shared<const BucketLayout>(reducer_->layout()));
}

void TorchWatch::arm() {
  num_launched_ = 0;
  has_marked_unused_ = false;
  in_flight_.clear();
  progress_.arm();
}

void TorchWatch::reduce_late() {
  is_late_ = true;
  reducer_->delay_all_reduce();
  is_late_ = false;
  on_finalized();
}

void TorchWatch::reduce_zeros(const at::Tensor& used_map) {
  num_launched_ = 0;
  in_flight_.clear();
  is_shadowing_ = true;
  std::vector<c10d::GradBucket> buckets = reducer_->get_grad_buckets(true);
  for (c10d::GradBucket& bucket : buckets) {
    reducer_->run_comm_hook(bucket);
  }
  complete_buckets();
  is_shadowing_ = false;
  if (used_map.defined()) {
    std::vector<at::Tensor> tensors = {used_map};
    group_->allreduce(tensors, c10d::AllreduceOptions())->wait();
  }
}

void TorchWatch::on_gradient(std::size_t parameter) {
  if (reducer_ == nullptr || !reducer_->armed() || reducer_->is_static_first()) {
    return;
  }
  if (!has_marked_unused_) {
    has_marked_unused_ = true;
    // The reducer lists them in an order that depends on addresses.
    const std::set<std::size_t> all_unused(reducer_->unused().begin(), reducer_->unused().end());
    for (const std::size_t unused : all_unused) {
      mark_ready(unused, EventKind::kUnusedMarked);
    }
  }
  if (reducer_->completes(parameter)) {
    mark_ready(parameter, EventKind::kGradientReady);
  }
}

void TorchWatch::mark_ready(std::size_t parameter, EventKind kind) {
  progress_.mark_ready(static_cast<std::int64_t>(parameter));
  tell(kind, static_cast<std::int64_t>(parameter));
}

void TorchWatch::mark_all_ready() {
  const std::vector<std::size_t>& unused = reducer_->unused();
  for (std::size_t i = 0; i < hooks_.size(); ++i) {
    const bool is_unused = std::find(unused.begin(), unused.end(), i) != unused.end();
    mark_ready(i, is_unused ? EventKind::kUnusedMarked : EventKind::kGradientReady);
  }
}

CollectiveTag TorchWatch::tag(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return bucket_or_used_map();
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

// The used map follows the buckets, but for the first iteration of a static graph (L3).
CollectiveTag TorchWatch::bucket_or_used_map() {
  const std::int64_t bucket = num_launched_++ - (is_late_ ? 1 : 0);
  if (bucket < 0 || bucket >= static_cast<std::int64_t>(reducer_->num_buckets())) {
    return {CallSite::kUsedMap, step_, -1};
  }
  return {CallSite::kBucket, step_, bucket};
}

CollectiveTag TorchWatch::broadcast_tag() {
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
void TorchWatch::on_launched(const CollectiveTag& tag, c10::intrusive_ptr<CommunicatorWork> work) {
  if (tag.site != CallSite::kBucket) {
    return;
  }
  in_flight_.push_back(std::move(work));
  if (is_late_ && tag.bucket == 0) {
    mark_all_ready();
  }
  if (is_shadowing_) {
    tell(EventKind::kBucketLaunched, tag.bucket);
    return;
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

void TorchWatch::complete_buckets() {
  for (const auto& work : in_flight_) {
    work->complete();
  }
  in_flight_.clear();
}

void TorchWatch::on_finalized() {
  progress_.finalized();
  tell(EventKind::kFinalized);
}

void TorchWatch::tell(EventKind kind, std::int64_t index) const {
  if (observer_ != nullptr) {
    observer_->on_event({kind, index});
  }
}

}  // namespace lockstep::harness
