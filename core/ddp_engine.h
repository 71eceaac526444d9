// SPDX-License-Identifier: Apache-2.0
// The part of DistributedDataParallel that does not depend on the module's type.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/checks.h"
#include "core/comm_hook.h"
#include "core/communicator.h"
#include "core/ddp_logging.h"
#include "core/observer.h"

namespace torch::nn {
class Module;
}

namespace lockstep {
class DdpJoin;
class Joinable;
struct ForwardPlan;
}  // namespace lockstep

namespace lockstep {

/// Plain options; the defaults are PyTorch's.
struct DdpOptions {
  /// Cap of the bucket that is reduced first, and of all others, in bytes; both positive. The
  /// smaller of both is used for the first, so lowering `bucket_cap_bytes` is enough (C2, C8, C14).
  std::int64_t first_bucket_cap_bytes = 1 << 20;
  std::int64_t bucket_cap_bytes = 25 << 20;
  /// `.grad` aliases the bucket (M). Zero gradients with `Module::zero_grad` or set them undefined:
  /// `Optimizer::zero_grad` detaches them in place, which LibTorch refuses for views (M3).
  bool gradient_as_bucket_view = false;
  bool find_unused_parameters = false;  ///< traverse the graph after each forward (I)
  bool static_graph = false;            ///< same graph every iteration (L); settles unused ones too
  bool broadcast_buffers = true;        ///< buffers of rank 0 before each forward (J)
  bool init_sync = true;                ///< verify and broadcast at construction (A6, A7)
  std::vector<std::string> ignored;     ///< parameters and buffers left alone (A2)
  /// Parameters with sparse gradients (C4), besides the weights of Embedding and EmbeddingBag,
  /// which are found.
  std::vector<std::string> sparse;
  std::int64_t logging_sample_rate = 100;  ///< of `logging_data`, positive (Q1)
  CheckOptions checks;                     ///< the same on all ranks
  Observer* observer = nullptr;            ///< outlives the engine; may be null
};

/// Which parameters share a bucket, in launch order, and how a gradient is scaled.
struct BucketLayout {
  std::vector<std::vector<std::int64_t>> buckets;  ///< parameter indices (A1), in bucket order
};

/// What the reducer is waiting for, for reports.
struct ReducerState {
  bool armed = false;            ///< a synchronised forward has taken place (S)
  bool unfinished = false;       ///< something was marked, not everything reduced (S)
  std::int64_t next_bucket = 0;  ///< first bucket not yet launched
  std::int64_t num_buckets = 0;
  std::vector<std::int64_t> not_ready;  ///< parameter indices not marked this iteration
};

class NoSyncGuard;

enum class BufferHookPoint : std::uint8_t { kPreForward, kPostForward };

/// Replaces the broadcast of buffers (J7). Gets name -> buffer, ignored ones left out, and may
/// return what is to be awaited before the next reduction ends or the next forward begins.
using BufferHook =
    std::function<std::vector<PendingTensor>(const std::map<std::string, at::Tensor>&)>;

/// The reducer, the wrapper's bookkeeping and the constructor collectives.
class DdpEngine {
 public:
  DdpEngine(torch::nn::Module& module, Communicator& communicator, const DdpOptions& options);
  ~DdpEngine();
  DdpEngine(const DdpEngine&) = delete;
  DdpEngine& operator=(const DdpEngine&) = delete;

  /// E1 to E5: rebuild if due, buffers if due. Errors: DdpError `reduction_unfinished` (K1).
  void before_forward();
  /// True if `after_forward` needs the module's output tensors (E8, E9).
  bool wants_output_tensors() const;
  /// E8, E9: arms the reducer; may replace `*outputs[i]` by the sink's outputs (E11).
  void after_forward(const std::vector<at::Tensor*>& outputs);

  NoSyncGuard no_sync();
  void set_step(std::int64_t step);

  /// From now on `hook` reduces the buckets (N). `name` appears in `logging_data`.
  /// Errors: DdpError `hook_registered_twice` (K6); UsageError while a reduction is under way.
  void register_comm_hook(CommHook hook, const std::string& name);
  /// From now on `hook` takes care of the buffers when they are due (J1, J7); with it
  /// `broadcast_buffers` must be on. Errors: DdpError `hook_registered_twice`.
  void register_buffer_hook(BufferHook hook, BufferHookPoint point = BufferHookPoint::kPostForward);
  /// As the option; find_unused_parameters is ignored then (L1). Does nothing if set already.
  /// Errors: DdpError `static_graph_too_late` after the first synchronised forward (K5).
  void set_static_graph();
  /// Errors: DdpError as `before_forward` would throw for an unfinished reduction (K1, K4).
  void check_finalized();
  /// Gradients are no longer touched and forwards no longer synchronise, so that another wrapper
  /// can take over the module (A9). Issues nothing; not to be called inside backward.
  void remove_hooks();
  /// What checked mode compares over the ranks besides parameters and buffers.
  void set_checked_state(CheckedState state);
  /// Goes on with another group, also after an error (F14): what was under way is dropped, buckets
  /// take their initial layout and will be rebuilt, a static graph is counted anew. Gradients and
  /// states stay as they are, a communication hook keeps its own communicator (N10). Issues
  /// nothing; not to be called inside backward. `communicator` outlives the engine.
  void set_communicator(Communicator& communicator);

  /// For `join`, alone or together with others.
  Joinable& joinable();

  /// Facts for whoever looks for a problem; see DdpLoggingData for when they are taken.
  DdpLoggingData logging_data() const;

  /// Names and tensors in parameter index order (A1).
  const std::vector<std::string>& parameter_names() const;
  const std::vector<at::Tensor>& parameters() const;
  /// The layout in force; a new object after a rebuild.
  std::shared_ptr<const BucketLayout> bucket_layout() const;
  /// May be called from any thread at any time; never waits for communication.
  ReducerState state() const;

 private:
  friend class NoSyncGuard;
  friend class DdpJoin;
  struct Impl;
  void sync_buffers(BufferHookPoint point);
  void begin_collectives(bool has_gradients);
  void check_replicas(bool has_inputs);
  void check_static_graph_is_known() const;
  // For DdpJoin.
  Communicator& communicator();
  void shadow_forward(const ForwardPlan& plan);
  void broadcast_states(std::int64_t root);

  std::unique_ptr<Impl> impl_;
};

/// Restores the previous state when destroyed. Must not outlive the engine.
class NoSyncGuard {
 public:
  explicit NoSyncGuard(DdpEngine& engine);
  ~NoSyncGuard();
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  DdpEngine& engine_;
  bool previous_;
};

}  // namespace lockstep
