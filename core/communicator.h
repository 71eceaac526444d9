// SPDX-License-Identifier: Apache-2.0
// The seam between DDP and its transports: collectives over one group of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace lockstep {

enum class CollectiveKind : std::uint8_t { kAllReduce, kBroadcast, kAllGather, kBarrier };
enum class ReduceOp : std::uint8_t { kSum, kMax };

/// What a collective is for. Ranks that meet in one collective must agree on it.
enum class CallSite : std::uint8_t {
  kParamCount,    ///< construction: number of parameters (A6, B1)
  kParamShapes,   ///< construction: sizes and strides (A6, B2)
  kModuleStates,  ///< construction: parameters and buffers from rank 0 (B7)
  kBucket,        ///< gradients of one bucket (F5)
  kUsedMap,       ///< which parameters were used (I4)
  kRebuildOrder,  ///< rebuild: indices of rank 0 (D5)
  kRebuildSizes,  ///< rebuild: bucket sizes of rank 0 (D5)
  kBuffers,       ///< buffers before forward (J1)
  kParameter,     ///< one parameter's gradient, no buckets
  kBarrier,       ///< a barrier of the training script
  kScript,        ///< any other collective of the training script
  /// Statistics of all batches in a SyncBatchNorm, or the sums of its backward.
  kSyncBatchNorm,
  kJoinActive,    ///< join: how many ranks still have inputs (O1)
  kJoinEarlyEnd,  ///< join: has any rank joined, where that is an error (O4)
  kJoinPlan,      ///< join: what the active ranks are about to do in this iteration (O1, O9)
  kJoinSource,    ///< join: which rank has the authoritative state (J2, O3)
  kChecks,        ///< comparisons of checked mode
};

/// Names as they appear in traces, reports and scenario files ("all_reduce", "bucket", ...).
std::string_view to_string(CollectiveKind kind);
std::string_view to_string(ReduceOp op);
std::string_view to_string(CallSite site);

/// Travels with every collective. Transports put it into their errors and traces; the simulator
/// also compares it across ranks, so that a wrong pairing is seen even where kind and size agree.
struct CollectiveTag {
  CallSite site = CallSite::kScript;
  std::int64_t step = -1;    ///< optimizer step, 0-based; -1: before the first
  std::int64_t bucket = -1;  ///< bucket or parameter index; -1: none

  friend bool operator==(const CollectiveTag& a, const CollectiveTag& b) {
    return a.site == b.site && a.step == b.step && a.bucket == b.bucket;
  }
  friend bool operator!=(const CollectiveTag& a, const CollectiveTag& b) { return !(a == b); }
};

/// A collective in flight. Destroying it does not cancel it: the transport keeps the tensors alive
/// until the collective has ended.
class Work {
 public:
  virtual ~Work() = default;

  /// Blocks until the collective has ended on this rank and its result may be read.
  /// May be called again; then returns, or throws the same error, at once.
  /// Errors: CommError (PeerLost, TimedOut, Desync), naming rank, collective and tag.
  virtual void wait() = 0;
};

/// Collectives over a fixed group of ranks.
///
/// Order:   collectives pair up across ranks by the order in which they are issued; every rank must
///          issue the same sequence.
/// Shapes:  tensors must be contiguous and, within one collective, have the same number of elements
///          and the same dtype on all ranks. UsageError for a tensor that is not contiguous.
/// Threads: one thread at a time per communicator. A launch does not wait for other ranks; only
///          `Work::wait` does.
/// Errors:  launches throw UsageError only; everything a peer can cause comes out of `Work::wait`.
/// The destructor issues no collective.
class Communicator {
 public:
  virtual ~Communicator() = default;

  /// 0 <= rank() < world_size().
  virtual std::int64_t rank() const = 0;
  virtual std::int64_t world_size() const = 0;

  /// Reduces `tensor` in place over all ranks. All ranks end with the same bits.
  virtual std::unique_ptr<Work> all_reduce(at::Tensor tensor, ReduceOp op, CollectiveTag tag) = 0;

  /// Copies `tensor` of rank `root` into `tensor` of every rank.
  virtual std::unique_ptr<Work> broadcast(at::Tensor tensor, std::int64_t root,
                                          CollectiveTag tag) = 0;

  /// Copies every rank's `input` [n...] into row `rank` of `output` [world_size, n...].
  virtual std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input,
                                           CollectiveTag tag) = 0;

  /// Ends on a rank only after every rank has entered.
  virtual std::unique_ptr<Work> barrier(CollectiveTag tag) = 0;
};

}  // namespace lockstep
