// SPDX-License-Identifier: Apache-2.0
// Averages gradients over ranks while backward still runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/bucket.h"
#include "core/bucket_plan.h"
#include "core/communicator.h"
#include "core/ddp_engine.h"
#include "core/error.h"
#include "core/reducer_progress.h"
#include "core/unused_parameters.h"

namespace lockstep {

// Note [Life of a reduction]
// `arm` (after a synchronised forward) makes the hooks count. Each gradient accumulator has a post
// hook, so it runs once `.grad` is final. The hook marks its parameter ready: the gradient is
// scaled into the bucket. A bucket whose parameters are all ready is launched, but never before its
// predecessor (F5): the order of collectives must be the same on all ranks, whatever the order of
// gradients. After the last launch a callback is queued on the backward in progress; when that ends
// the callback waits for the buckets in order, copies the averages back and disarms. What throws in
// between leaves the reduction unfinished, and the next forward says so.
//
// With a static graph the first armed backward only counts hooks, and the reduction happens as one
// block when it ends: used map, gradients, buckets (L2, L3). Later a parameter is ready when its
// hook ran as often as counted. Hooks that bring no gradient do not count, so that an output which
// never enters the loss changes nothing; backwards that are not armed do not count either (L9).

/// The gradient hooks, their bookkeeping, and the collectives of backward.
///
/// Threads: methods on one thread at a time, hooks on LibTorch's threads; `state` and `layout` on
/// any thread at any time. `parameters`' hooks are removed by the destructor, which issues no
/// collective and does not wait for those in flight.
class Reducer {
 public:
  /// No collective. `communicator` and `options.observer` outlive the reducer.
  /// Errors: UsageError for a parameter given twice, sparse or complex, or a cap <= 0.
  Reducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
          Communicator& communicator, const DdpOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Call at the start of each forward with gradients enabled. Once in the reducer's life, after
  /// the first backward that recorded the order of gradients, buckets are rebuilt in rank 0's order
  /// (D). Issues two broadcasts then, nothing otherwise. True if buckets were rebuilt.
  /// Errors: DdpError `reduction_unfinished` (K1) or `static_graph_changed` (K4); CommError.
  bool rebuild_buckets_if_due();

  /// Makes the next backward synchronise (E12). `outputs`: what the forward returned; only looked
  /// at with find_unused_parameters.
  void arm(const std::vector<at::Tensor*>& outputs);

  /// True if the outputs of a forward must pass through `attach_sink_to` (E9).
  bool wants_sink(bool synchronized) const;
  /// E11. Replaces those of `outputs` that have a graph; if none has one and this rank used no
  /// parameter, all floating-point ones, so that backward can still take part in the reduction.
  void attach_sink_to(const std::vector<at::Tensor*>& outputs);

  /// Goes into the tags of the collectives that follow.
  void set_step(std::int64_t step) { step_ = step; }

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::vector<std::string>& names() const { return names_; }
  std::shared_ptr<const BucketLayout> layout() const { return progress_.layout(); }
  ReducerState state() const { return progress_.state(); }
  /// On how many ranks each parameter was used in the last reduction of the used map (I4).
  const std::vector<std::int32_t>& ranks_using() const { return used_.reduced(); }
  /// The flat buffers, in bucket order.
  const std::vector<Bucket>& buckets() const { return buckets_; }

 private:
  struct Location {
    std::size_t bucket = 0;
    std::size_t slot = 0;
  };

  void register_hooks();
  void set_plan(const BucketPlan& plan);
  void adopt_views();
  BucketPlan plan_of_rank_zero(const BucketPlan& own);

  // Hooks.
  void on_gradient(std::int64_t parameter, bool received);
  void on_static_gradient(std::int64_t parameter);
  void on_sink_backward();
  void mark_unused_once();
  void mark_ready(std::int64_t parameter, EventKind kind);
  bool launch_complete_buckets();
  void launch_used_map();
  void queue(void (Reducer::*callback)());

  // Callbacks at the end of backward.
  void reduce_static_first();
  void complete_all_unused();
  void finalize();

  void copy_in(std::int64_t parameter);
  void check_gradient(std::int64_t parameter, const at::Tensor& gradient) const;
  void copy_out(Bucket& bucket);
  bool globally_unused(std::int64_t parameter);

  bool finds_unused() const { return find_unused_ && !static_graph_; }
  bool counts_hooks() const { return static_graph_ && !static_recorded_; }
  bool all_unused() const { return unused_.size() == parameters_.size(); }
  bool may_rebuild() const { return (static_graph_ || !find_unused_) && !has_rebuilt_; }
  bool tracks(const at::Tensor& output) const;
  DdpError unfinished_error() const;
  DdpError error(const char* kind, const std::string& message, std::int64_t parameter) const;
  CollectiveTag tag(CallSite site, std::int64_t bucket = -1) const { return {site, step_, bucket}; }
  void tell(EventKind kind, std::int64_t index = -1) const;

  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  Communicator& communicator_;
  Observer* observer_;
  BucketCaps caps_;
  bool as_view_;
  bool find_unused_;
  bool static_graph_;
  std::int64_t world_size_;
  std::int64_t step_ = -1;

  // Serialises hooks. Held across launches, which do not block; `state` does not need it.
  std::mutex hook_mutex_;
  // Accumulators are held because the tensors hold them weakly (A8).
  std::vector<std::pair<std::shared_ptr<torch::autograd::Node>, std::uintptr_t>> hooks_;
  AccumulatorIndex accumulators_;
  // Callbacks and sinks may outlive the reducer; they hold this weakly.
  std::shared_ptr<Reducer*> self_;

  std::vector<Bucket> buckets_;
  std::vector<Location> locations_;
  ReducerProgress progress_;

  bool armed_ = false;  // hooks count
  bool owed_ = false;   // something was marked or launched and is not finalized
  std::size_t next_bucket_ = 0;
  std::vector<bool> ready_;
  std::vector<std::int64_t> unused_;
  bool has_marked_unused_ = false;
  UsedMap used_;

  std::vector<std::int64_t> ready_order_;
  bool has_rebuilt_ = false;

  bool static_recorded_ = false;
  bool static_queued_ = false;
  std::vector<std::int64_t> hook_counts_;      // of the first static iteration
  std::vector<std::int64_t> hooks_remaining_;  // of this iteration
};

}  // namespace lockstep
