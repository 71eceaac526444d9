// SPDX-License-Identifier: Apache-2.0
// The reducer between arming and the end of backward: hooks, marking, launching, finalizing.
#include "core/reducer.h"

#include <torch/types.h>

#include <algorithm>

#include "core/check.h"
#include "core/ddp_sink.h"
#include "core/torch_compat.h"

namespace lockstep {

void Reducer::arm(const std::vector<at::Tensor*>& outputs) {
  const std::lock_guard<std::mutex> lock(hook_mutex_);
  armed_ = true;
  ready_.assign(parameters_.size(), false);
  has_marked_unused_ = false;
  next_bucket_ = 0;
  for (Bucket& bucket : buckets_) {
    bucket.num_pending = static_cast<std::int64_t>(bucket.slots.size());
  }
  if (counts_hooks()) {
    hook_counts_.assign(parameters_.size(), 0);
    used_.reset();
    static_queued_ = false;
  } else if (static_graph_) {
    hooks_remaining_ = hook_counts_;
  } else if (find_unused_) {
    unused_ = search_unused_parameters(outputs, accumulators_);
  }
  progress_.arm();
}

void Reducer::on_gradient(std::int64_t parameter, bool received) {
  const std::lock_guard<std::mutex> lock(hook_mutex_);
  // Before the armed check: the map covers the whole accumulation window (F1, H8, H10).
  if (finds_unused() && parameters_[static_cast<std::size_t>(parameter)].grad().defined()) {
    used_.mark(parameter);
  }
  if (!armed_) {
    return;
  }
  if (static_graph_) {
    if (received) {
      on_static_gradient(parameter);
    }
    return;
  }
  mark_unused_once();
  mark_ready(parameter, EventKind::kGradientReady);
}

void Reducer::on_static_gradient(std::int64_t parameter) {
  const auto index = static_cast<std::size_t>(parameter);
  if (counts_hooks()) {
    ++hook_counts_[index];
    used_.mark(parameter);
    if (!static_queued_) {  // this loss does not pass through the sink
      static_queued_ = true;
      queue(&Reducer::reduce_static_first);
    }
    return;
  }
  if (hooks_remaining_[index] == 0) {
    throw error("static_graph_changed",
                "the graph is not static: this parameter received more gradients than in the "
                "first iteration",
                parameter);
  }
  mark_unused_once();
  if (--hooks_remaining_[index] == 0) {
    mark_ready(parameter, EventKind::kGradientReady);
  }
}

void Reducer::mark_unused_once() {
  if (has_marked_unused_) {
    return;
  }
  has_marked_unused_ = true;
  for (const std::int64_t parameter : unused_) {
    mark_ready(parameter, EventKind::kUnusedMarked);
  }
}

void Reducer::mark_ready(std::int64_t parameter, EventKind kind) {
  const auto index = static_cast<std::size_t>(parameter);
  LOCKSTEP_CHECK(index < locations_.size(), "parameter index {}", parameter);
  if (ready_[index]) {
    throw error("ready_twice",
                "this parameter was marked ready twice in one iteration. Either it takes part in "
                "two backwards of one forward or in a backward inside backward (static_graph "
                "allows that), or it was used outside the outputs of the wrapper's last forward "
                "while find_unused_parameters is on",
                parameter);
  }
  copy_in(parameter);
  ready_[index] = true;
  owed_ = true;
  progress_.mark_ready(parameter);
  if (kind == EventKind::kGradientReady && may_rebuild()) {
    ready_order_.push_back(parameter);
  }
  tell(kind, parameter);
  if (--buckets_[locations_[index].bucket].num_pending > 0) {
    return;
  }
  if (launch_complete_buckets()) {
    launch_used_map();
    queue(&Reducer::finalize);
  }
}

// Buckets are launched in index order only; one that is complete early waits for its predecessors.
// True once, when the last one has been launched.
bool Reducer::launch_complete_buckets() {
  if (next_bucket_ == buckets_.size()) {
    return false;
  }
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].num_pending == 0) {
    Bucket& bucket = buckets_[next_bucket_];
    const auto index = static_cast<std::int64_t>(next_bucket_);
    bucket.work =
        communicator_.all_reduce(bucket.flat, ReduceOp::kSum, tag(CallSite::kBucket, index));
    ++next_bucket_;
    progress_.launched(index + 1);
    tell(EventKind::kBucketLaunched, index);
  }
  return next_bucket_ == buckets_.size();
}

void Reducer::launch_used_map() {
  if (finds_unused()) {
    used_.launch(communicator_, tag(CallSite::kUsedMap));
  }
}

void Reducer::queue(void (Reducer::*callback)()) {
  const std::weak_ptr<Reducer*> weak = self_;
  compat::queue_callback([weak, callback] {
    if (const std::shared_ptr<Reducer*> self = weak.lock()) {
      ((*self)->*callback)();
    }
  });
}

void Reducer::on_sink_backward() {
  const std::lock_guard<std::mutex> lock(hook_mutex_);
  if (!armed_) {
    return;
  }
  if (counts_hooks()) {
    if (!static_queued_) {
      static_queued_ = true;
      queue(&Reducer::reduce_static_first);
    }
  } else if (all_unused() && !has_marked_unused_) {
    queue(&Reducer::complete_all_unused);
  }
}

// No hook runs on a rank that used no parameter; it still owes its zeros to the others.
void Reducer::complete_all_unused() {
  if (!armed_ || has_marked_unused_) {
    return;
  }
  mark_unused_once();  // launches every bucket and queues `finalize`
}

void Reducer::reduce_static_first() {
  if (!armed_ || !counts_hooks()) {
    return;
  }
  owed_ = true;
  unused_.clear();
  for (std::size_t i = 0; i < hook_counts_.size(); ++i) {
    if (hook_counts_[i] == 0) {
      unused_.push_back(static_cast<std::int64_t>(i));
    }
  }
  used_.launch(communicator_, tag(CallSite::kUsedMap));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto parameter = static_cast<std::int64_t>(i);
    copy_in(parameter);
    ready_[i] = true;
    progress_.mark_ready(parameter);
    tell(hook_counts_[i] == 0 ? EventKind::kUnusedMarked : EventKind::kGradientReady, parameter);
  }
  for (Bucket& bucket : buckets_) {
    bucket.num_pending = 0;
  }
  has_marked_unused_ = true;
  launch_complete_buckets();
  finalize();
  static_recorded_ = true;
}

void Reducer::finalize() {
  LOCKSTEP_CHECK(armed_ && owed_ && next_bucket_ == buckets_.size(),
                 "finalize with {} of {} buckets launched", next_bucket_, buckets_.size());
  if (static_graph_ && static_recorded_ && may_rebuild()) {
    ready_order_.insert(ready_order_.end(), unused_.begin(), unused_.end());
  }
  for (Bucket& bucket : buckets_) {
    bucket.work->wait();
    bucket.work.reset();
    copy_out(bucket);
  }
  used_.wait();
  if (finds_unused()) {
    used_.reset();
  }
  armed_ = false;
  owed_ = false;
  progress_.finalized();
  tell(EventKind::kFinalized);
}

void Reducer::check_gradient(std::int64_t parameter, const at::Tensor& gradient) const {
  const at::Tensor& own = parameters_[static_cast<std::size_t>(parameter)];
  if (gradient.layout() != at::kStrided) {
    throw error("sparse_gradient", "sparse gradients are not supported", parameter);
  }
  if (gradient.requires_grad()) {
    throw error("create_graph",
                "its gradient requires grad: backward with create_graph cannot be synchronised; "
                "run it under no_sync",
                parameter);
  }
  if (gradient.scalar_type() != own.scalar_type() || gradient.device() != own.device() ||
      gradient.sizes() != own.sizes()) {
    throw error(
        "gradient_mismatch",
        fmt::format("expected a gradient of {} with {} elements on {}, got {} with {} on {}",
                    c10::toString(own.scalar_type()), own.numel(), own.device().str(),
                    c10::toString(gradient.scalar_type()), gradient.numel(),
                    gradient.device().str()),
        parameter);
  }
}

void Reducer::copy_in(std::int64_t parameter) {
  const Location at = locations_[static_cast<std::size_t>(parameter)];
  const at::Tensor& view = buckets_[at.bucket].slots[at.slot].view;
  at::Tensor& gradient = parameters_[static_cast<std::size_t>(parameter)].mutable_grad();
  if (!gradient.defined()) {
    if ((finds_unused() || counts_hooks()) && used_.used_locally(parameter)) {
      throw error("undefined_gradient",
                  "it was used since the last reduction, but its gradient is undefined now; was it "
                  "reset inside a window of accumulated gradients?",
                  parameter);
    }
    const at::NoGradGuard no_grad;
    view.zero_();
    return;
  }
  check_gradient(parameter, gradient);
  if (is_same_view(gradient, view)) {
    scale_in_place(view, world_size_);
    return;
  }
  scale_into(view, gradient, world_size_);
  if (as_view_) {
    gradient = view;
  }
}

bool Reducer::globally_unused(std::int64_t parameter) {
  const bool has_map = static_graph_ || find_unused_;
  return has_map && !used_.used_locally(parameter) && used_.ranks_using(parameter) == 0;
}

void Reducer::copy_out(Bucket& bucket) {
  const at::NoGradGuard no_grad;
  for (const Bucket::Slot& slot : bucket.slots) {
    if (globally_unused(slot.parameter)) {
      continue;
    }
    at::Tensor& gradient = parameters_[static_cast<std::size_t>(slot.parameter)].mutable_grad();
    if (!gradient.defined()) {
      gradient = as_view_ ? slot.view : slot.view.clone();
    } else if (!as_view_) {
      copy_into(gradient, slot.view);
    } else if (!is_same_view(gradient, slot.view)) {
      throw error("not_a_bucket_view",
                  "its gradient was replaced between backward's hook and the end of backward: it "
                  "is not the expected view of the bucket",
                  slot.parameter);
    }
  }
}

}  // namespace lockstep
