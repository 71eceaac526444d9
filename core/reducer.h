// SPDX-License-Identifier: Apache-2.0
// Averages gradients over ranks while backward still runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/bucket.h"
#include "core/bucket_plan.h"
#include "core/comm_hook.h"
#include "core/communicator.h"
#include "core/ddp_engine.h"
#include "core/error.h"
#include "core/reducer_progress.h"
#include "core/torch_compat.h"
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
  /// No collective. `communicator` and `options.observer` outlive the reducer. `sparse`: whose
  /// gradients are sparse; empty: nobody's.
  /// Errors: UsageError for a parameter that is given twice or itself sparse, or a cap <= 0.
  Reducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
          Communicator& communicator, const DdpOptions& options, SparseFlags sparse = {});
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Call at the start of each forward with gradients enabled. Once in the reducer's life, after
  /// the first backward that recorded the order of gradients, buckets are rebuilt in rank 0's order
  /// (D). Issues two broadcasts then, nothing otherwise. True if buckets were rebuilt.
  /// Errors: as `check_finalized`; CommError.
  bool rebuild_buckets_if_due();
  bool rebuild_is_due() const { return may_rebuild() && !ready_order_.empty(); }
  /// Errors: DdpError `reduction_unfinished` (K1) or `static_graph_changed` (K4).
  void check_finalized();

  /// Makes the next backward synchronise (E12). `outputs`: what the forward returned; only looked
  /// at with find_unused_parameters.
  void arm(const std::vector<at::Tensor*>& outputs);

  /// Which parameters take part in `outputs` (I1). Shape: [P].
  std::vector<Use> uses_in(const std::vector<at::Tensor*>& outputs) const;
  bool is_static() const { return static_graph_; }
  /// Checked mode: a backward that reaches one of `outputs` and ends with the reduction unfinished
  /// throws what the next forward would (K1, K4); see CheckOptions::backwards_per_forward. An
  /// output that is a leaf, such as a parameter, is replaced by an alias of it.
  void watch_backward_of(const std::vector<at::Tensor*>& outputs);
  /// Checked mode: the graph of a forward whose backward is still to come is alive, and with it the
  /// tensors that it saved.
  bool graph_is_awaited() const;
  /// Checked mode: the outputs of a forward under no_sync; of leaves the same holds. A backward
  /// that neither comes from such a forward, nor is under no_sync itself, nor was armed throws
  /// `unarmed_backward`: its gradients would stay local unseen.
  void expect_local_backward_of(const std::vector<at::Tensor*>& outputs);
  void set_no_sync(bool is_under) { is_under_no_sync_ = is_under; }

  /// True if the outputs of a forward must pass through `attach_sink_to` (E9).
  bool wants_sink(bool synchronized) const;
  /// E11. Replaces those of `outputs` that have a graph; if none has one and this rank used no
  /// parameter, all floating-point ones, so that backward can still take part in the reduction.
  void attach_sink_to(const std::vector<at::Tensor*>& outputs);

  /// Replaces the all-reduce of buckets; see Note [Communication hooks].
  /// Errors: DdpError `hook_registered_twice` (K6); UsageError while a reduction is under way.
  void register_comm_hook(CommHook hook, const std::string& name);
  /// Awaited when the next reduction ends, or by `wait_installed` (F8).
  void install(std::vector<PendingTensor> pending);
  /// Errors: CommError, and whatever a step throws.
  void wait_installed();

  /// In the next reduction gradients are divided by what `source` returns. It is called once, when
  /// the first parameter is marked, and may block (G2). Later reductions divide by the world size.
  void divide_next_by(std::function<std::int64_t()> source) { divisor_source_ = std::move(source); }
  /// Takes part in one reduction of the others without gradients: buckets of zeros through the
  /// hook, then a used map of zeros (N7, O7, O10). Gradients are not touched. A reducer that has
  /// recorded no order of gradients yet will propose the order of declaration (D8).
  /// Errors: UsageError if `awaits_static_graph` (L11); CommError; DdpError as a backward.
  void reduce_zeros();

  /// See DdpEngine. Errors: DdpError `static_graph_too_late` (K5).
  void set_static_graph();
  /// The next synchronised backward is the one that records the static graph (L2).
  bool awaits_static_graph() const { return counts_hooks(); }
  void remove_hooks();
  bool has_hooks() const { return !hooks_.empty(); }
  void set_communicator(Communicator& communicator);

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

  /// What never changes.
  DdpLoggingData facts() const;
  /// Brings up to date what may be read at any time, errors among it.
  void describe(DdpLoggingData& data) const;
  /// Fills in what belongs to the iteration that was armed last.
  void sample(DdpLoggingData& data) const;
  std::int64_t num_armed() const { return num_armed_; }
  /// Keeps `error` for `describe` and returns it (K17).
  DdpError noted(DdpError error);

 private:
  struct Location {
    std::size_t bucket = 0;
    std::size_t slot = 0;
  };

  void register_hooks();
  void set_plan(const BucketPlan& plan);
  void adopt_views();
  BucketPlan plan_of_rank_zero(const BucketPlan& own);
  void disarm();

  // Hooks.
  void on_gradient(std::int64_t parameter, bool received);
  void on_static_gradient(std::int64_t parameter);
  void check_local(std::int64_t parameter);
  void on_sink_backward();
  void mark_unused_once();
  void mark_ready(std::int64_t parameter, EventKind kind);
  bool launch_complete_buckets();
  PendingTensor launch(std::size_t bucket, const at::Tensor& buffer);
  GradBucket grad_bucket(std::size_t index, const at::Tensor& buffer) const;
  void launch_used_map();
  void queue(void (Reducer::*callback)());

  // Callbacks at the end of backward.
  void reduce_static_first();
  void complete_all_unused();
  void check_backward_ended();
  void end_local_backward();
  void finalize();

  std::int64_t divisor();
  void copy_in(std::int64_t parameter);
  void copy_in_sparse(Bucket& bucket, const at::Tensor& parameter);
  void copy_in_dense(const at::Tensor& view, at::Tensor& gradient, std::int64_t by) const;
  void check_gradient(std::int64_t parameter, const at::Tensor& gradient, bool is_sparse);
  void check_result(std::size_t bucket, const at::Tensor& buffer, const at::Tensor& result);
  void take_result(std::size_t bucket);
  void copy_out(Bucket& bucket);
  bool globally_unused(std::int64_t parameter);

  bool finds_unused() const { return find_unused_ && !static_graph_; }
  bool counts_hooks() const { return static_graph_ && !static_recorded_; }
  bool all_unused() const { return unused_.size() == parameters_.size(); }
  bool may_rebuild() const { return (static_graph_ || !find_unused_) && !has_rebuilt_; }
  bool tracks(const at::Tensor& output) const;
  DdpError unfinished_error() const;
  DdpError error(const char* kind, const std::string& message, std::int64_t parameter);
  CollectiveTag tag(CallSite site, std::int64_t bucket = -1) const { return {site, step_, bucket}; }
  void tell(EventKind kind, std::int64_t index = -1) const;

  std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  SparseFlags sparse_;
  Communicator* communicator_;
  Observer* observer_;
  BucketCaps caps_;
  bool as_view_;
  bool find_unused_;
  bool static_graph_;
  CheckOptions checks_;
  CommHook comm_hook_;
  std::string comm_hook_name_;
  std::int64_t step_ = -1;

  // Serialises hooks. Held across launches, which do not block; `state` does not need it.
  std::mutex hook_mutex_;
  // Accumulators are held because the tensors hold them weakly (A8).
  std::vector<std::pair<compat::NodePtr, std::uintptr_t>> hooks_;
  AccumulatorIndex accumulators_;
  // Callbacks and sinks may outlive the reducer; they hold this weakly.
  std::shared_ptr<Reducer*> self_;

  std::vector<Bucket> buckets_;
  std::vector<Location> locations_;
  ReducerProgress progress_;
  std::vector<PendingTensor> installed_;

  bool armed_ = false;  // hooks count
  bool owed_ = false;   // something was marked or launched and is not finalized
  std::size_t next_bucket_ = 0;
  std::vector<bool> ready_;
  std::vector<std::int64_t> unused_;
  bool has_marked_unused_ = false;
  std::int64_t num_backwards_ = 0;  // that ended since arming; checked mode only
  bool end_queued_ = false;
  std::vector<std::weak_ptr<int>> graphs_;  // each held by a hook on an output, while that lives
  bool is_under_no_sync_ = false;
  bool last_is_local_ = false;      // the last forward with gradients was under no_sync
  bool in_local_backward_ = false;  // a backward from such a forward is under way
  UsedMap used_;
  std::function<std::int64_t()> divisor_source_;
  std::int64_t divisor_ = 0;  // 0: not resolved in this reduction

  std::vector<std::int64_t> ready_order_;  // what buckets will be rebuilt from
  bool has_rebuilt_ = false;

  bool static_recorded_ = false;
  bool static_queued_ = false;
  std::vector<std::int64_t> hook_counts_;      // of the first static iteration
  std::vector<std::int64_t> hooks_remaining_;  // of this iteration

  // For logging.
  std::int64_t num_armed_ = 0;
  std::vector<std::int64_t> arrival_order_;  // of this iteration
  bool unused_never_changed_ = true;
  std::string last_error_;
  std::int64_t last_error_iteration_ = 0;
};

}  // namespace lockstep
