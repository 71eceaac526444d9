// SPDX-License-Identifier: Apache-2.0
// Stands around PyTorch's reducer: names its collectives, waits for them, tells what it does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/communicator.h"
#include "core/observer.h"
#include "core/reducer_progress.h"
#include "core/torch_compat.h"
#include "harness/sync/communicator_process_group.h"
#include "harness/sync/torch_reducer.h"

namespace lockstep::harness {

// Note [When the peer's collectives are waited for]
// The reducer launches buckets from its hooks and waits for their futures in a callback that it
// queues on the backward in progress after the last launch (F6, F7). With the launch of the last
// bucket a callback of ours is queued just before; it waits for all buckets, in order, where the
// scheduler sees it, and what a wait throws comes out of backward. The first iteration of a static
// graph runs in such a callback itself and waits right after its last launch, so there the wait
// takes place in the launching call. Everything else that the reducer waits for, it waits for by
// `Work::wait`.

/// The process group of one reducer, and what can be seen from it and from the parameters' hooks.
///
/// Order:   construct; use `group`; make the reducer (its hooks must come after those of the watch)
///          and hand it to `watch`; then `arm` before each `prepare_for_backward`.
/// Threads: the rank's own thread; `progress` on any.
class TorchWatch {
 public:
  /// `communicator` and `observer` (may be null) outlive this; `parameters` in index order (A1).
  TorchWatch(Communicator& communicator, Observer* observer,
             const std::vector<at::Tensor>& parameters);
  ~TorchWatch();
  TorchWatch(const TorchWatch&) = delete;
  TorchWatch& operator=(const TorchWatch&) = delete;

  const c10::intrusive_ptr<CommunicatorProcessGroup>& group() const { return group_; }
  const ReducerProgress& progress() const { return progress_; }

  void watch(std::shared_ptr<TorchReducer> reducer);
  void set_step(std::int64_t step) { step_ = step; }
  /// What the next broadcasts are for.
  void expect(CallSite site);
  /// Buckets have changed.
  void note_layout();
  /// A synchronised forward has taken place.
  void arm();
  /// L3, as a callback of the engine at the end of backward.
  void reduce_late();
  /// A joined rank's part in a reduction: zeros for each bucket, through the hook; then
  /// `used_map`, if it is defined, as it is (O1, O10).
  void reduce_zeros(const at::Tensor& used_map);
  void tell(EventKind kind, std::int64_t index = -1) const;

 private:
  void on_gradient(std::size_t parameter);
  void mark_ready(std::size_t parameter, EventKind kind);
  void mark_all_ready();
  CollectiveTag tag(CollectiveKind kind);
  CollectiveTag bucket_or_used_map();
  CollectiveTag broadcast_tag();
  void on_launched(const CollectiveTag& tag, c10::intrusive_ptr<CommunicatorWork> work);
  void complete_buckets();
  void on_finalized();

  Observer* observer_;
  ReducerProgress progress_;
  c10::intrusive_ptr<CommunicatorProcessGroup> group_;
  std::vector<std::pair<compat::NodePtr, std::uintptr_t>> hooks_;
  std::shared_ptr<TorchReducer> reducer_;

  CallSite site_ = CallSite::kParamCount;
  std::int64_t position_ = 0;  // of the next coalesced broadcast
  std::int64_t step_ = -1;
  std::int64_t num_launched_ = 0;  // all_reduces of this iteration
  bool is_late_ = false;           // inside delay_all_reduce
  bool is_shadowing_ = false;      // inside reduce_zeros
  bool has_marked_unused_ = false;
  std::vector<c10::intrusive_ptr<CommunicatorWork>> in_flight_;
};

}  // namespace lockstep::harness
