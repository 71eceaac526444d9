// SPDX-License-Identifier: Apache-2.0
// The reducer between arming and the end of backward: hooks, marking, launching, finalizing.
#include "core/reducer.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/types.h>

#include <algorithm>

#include "core/check.h"
#include "core/sparse_all_reduce.h"
#include "core/torch_compat.h"

namespace lockstep {
namespace {

// False in a backward that computes gradients of given tensors alone, such as those of inputs for a
// penalty: it passes through the outputs, and none of these accumulators runs (A11).
bool accumulates(const std::vector<std::pair<compat::NodePtr, std::uintptr_t>>& hooked) {
  const auto* const info = torch::autograd::get_current_graph_task_exec_info();
  if (info == nullptr || info->empty()) {
    return true;
  }
  return std::any_of(hooked.begin(), hooked.end(), [info](const auto& entry) {
    const auto found = info->find(entry.first.get());
    return found != info->end() && found->second.needed_;
  });
}

}  // namespace

void Reducer::arm(const std::vector<at::Tensor*>& outputs) {
  const std::lock_guard<std::mutex> lock(hook_mutex_);
  armed_ = true;
  ready_.assign(parameters_.size(), false);
  has_marked_unused_ = false;
  num_backwards_ = 0;
  last_is_local_ = false;
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
    std::vector<std::int64_t> found = search_unused_parameters(outputs, accumulators_);
    unused_never_changed_ = unused_never_changed_ && (num_armed_ == 0 || found == unused_);
    unused_ = std::move(found);
  }
  arrival_order_.clear();
  ++num_armed_;
  progress_.arm();
}

void Reducer::on_gradient(std::int64_t parameter, bool received) {
  const std::lock_guard<std::mutex> lock(hook_mutex_);
  // Before the armed check: the map covers the whole accumulation window (F1, H8). What has no
  // gradient after all is forgotten when it is copied in (H10).
  if (finds_unused()) {
    used_.mark(parameter);
  }
  if (!armed_) {
    check_local(parameter);
    return;
  }
  // A loss made of gradients of inputs does not pass through the outputs, where this is queued
  // else.
  if (checks_.level != Checks::kOff && !end_queued_) {
    end_queued_ = true;
    queue(&Reducer::check_backward_ended);
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

void Reducer::check_local(std::int64_t parameter) {
  if (checks_.level != Checks::kOff && !is_under_no_sync_ && !last_is_local_ &&
      !in_local_backward_) {
    throw error("unarmed_backward",
                "this parameter received a gradient in a backward that no forward of the wrapper "
                "prepared: it would stay local. Call the wrapper, not the module inside it, and "
                "call backward once after each forward; under no_sync gradients may stay local",
                parameter);
  }
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
  if (kind == EventKind::kGradientReady) {
    arrival_order_.push_back(parameter);
    if (may_rebuild()) {
      ready_order_.push_back(parameter);
    }
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
    bucket.pending = launch(next_bucket_, bucket.buffer());
    ++next_bucket_;
    progress_.launched(index + 1);
    tell(EventKind::kBucketLaunched, index);
  }
  return next_bucket_ == buckets_.size();
}

PendingTensor Reducer::launch(std::size_t bucket, const at::Tensor& buffer) {
  const at::NoGradGuard no_grad;
  const CollectiveTag bucket_tag = tag(CallSite::kBucket, static_cast<std::int64_t>(bucket));
  if (comm_hook_ != nullptr) {
    return comm_hook_(grad_bucket(bucket, buffer));
  }
  if (buffer.is_sparse()) {
    return sparse_all_reduce(*communicator_, buffer, bucket_tag);
  }
  return {communicator_->all_reduce(buffer, ReduceOp::kSum, bucket_tag), buffer};
}

GradBucket Reducer::grad_bucket(std::size_t index, const at::Tensor& buffer) const {
  GradBucket bucket;
  bucket.index = static_cast<std::int64_t>(index);
  bucket.count = static_cast<std::int64_t>(buckets_.size());
  bucket.buffer = buffer;
  bucket.tag = tag(CallSite::kBucket, bucket.index);
  for (const Bucket::Slot& slot : buckets_[index].slots) {
    const at::Tensor& parameter = parameters_[static_cast<std::size_t>(slot.parameter)];
    bucket.parameters.push_back(parameter);
    bucket.offsets.push_back(slot.offset);
    bucket.lengths.push_back((parameter.is_complex() ? 2 : 1) * parameter.numel());
    bucket.sizes.push_back(parameter.sizes().vec());
  }
  return bucket;
}

void Reducer::launch_used_map() {
  if (finds_unused()) {
    used_.launch(*communicator_, tag(CallSite::kUsedMap));
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
  if (!armed_ || !accumulates(hooks_)) {
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

namespace {

// Hooks on a leaf, such as a parameter that the module returns as it is, would outlive the graph.
// Only strided tensors have an alias; hooks on others do.
void give_node(at::Tensor& output) {
  if (output.is_leaf() && output.layout() == at::kStrided) {
    output = output.alias();
  }
}

}  // namespace

// A hook on the tensor, not the sink: that would hand undefined gradients to parameters whose
// outputs take no part in this backward, and so change what is being checked.
void Reducer::watch_backward_of(const std::vector<at::Tensor*>& outputs) {
  const std::weak_ptr<Reducer*> weak = self_;
  const auto graph = std::make_shared<int>();
  graphs_.emplace_back(graph);
  for (at::Tensor* output : outputs) {
    if (output->defined() && output->requires_grad()) {
      give_node(*output);
      output->register_hook([weak, graph](const at::Tensor& gradient) {
        const std::shared_ptr<Reducer*> self = weak.lock();
        if (self != nullptr && (*self)->armed_ && !(*self)->end_queued_ &&
            accumulates((*self)->hooks_)) {
          (*self)->end_queued_ = true;
          (*self)->queue(&Reducer::check_backward_ended);
        }
        return gradient;
      });
    }
  }
}

bool Reducer::graph_is_awaited() const {
  return std::any_of(graphs_.begin(), graphs_.end(),
                     [](const std::weak_ptr<int>& graph) { return !graph.expired(); });
}

void Reducer::expect_local_backward_of(const std::vector<at::Tensor*>& outputs) {
  last_is_local_ = true;
  const std::weak_ptr<Reducer*> weak = self_;
  for (at::Tensor* output : outputs) {
    if (output->defined() && output->requires_grad()) {
      give_node(*output);
      output->register_hook([weak](const at::Tensor& gradient) {
        const std::shared_ptr<Reducer*> self = weak.lock();
        if (self != nullptr && !(*self)->in_local_backward_) {
          (*self)->in_local_backward_ = true;
          (*self)->queue(&Reducer::end_local_backward);
        }
        return gradient;
      });
    }
  }
}

void Reducer::end_local_backward() { in_local_backward_ = false; }

// Runs before `finalize`, which is queued later in the same backward. What is not launched by now
// will not be in this backward, unless nothing was used: `complete_all_unused` is still to come.
void Reducer::check_backward_ended() {
  end_queued_ = false;
  if (all_unused() && !has_marked_unused_) {
    return;
  }
  if (!armed_ || counts_hooks() || next_bucket_ == buckets_.size() ||
      ++num_backwards_ < checks_.backwards_per_forward) {
    return;
  }
  owed_ = true;
  throw noted(unfinished_error());
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
  used_.launch(*communicator_, tag(CallSite::kUsedMap));
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
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    take_result(i);
    copy_out(buckets_[i]);
  }
  wait_installed();
  used_.wait();
  if (finds_unused()) {
    used_.reset();
  }
  disarm();
  tell(EventKind::kFinalized);
}

void Reducer::disarm() {
  armed_ = false;
  graphs_.clear();
  owed_ = false;
  divisor_source_ = nullptr;
  divisor_ = 0;
  progress_.finalized();
}

}  // namespace lockstep
