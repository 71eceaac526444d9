// SPDX-License-Identifier: Apache-2.0
// The part of DistributedDataParallel that does not depend on the module's type.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/observer.h"

namespace torch::nn {
class Module;
}

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
  Observer* observer = nullptr;         ///< outlives the engine; may be null
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

  /// Names and tensors in parameter index order (A1).
  const std::vector<std::string>& parameter_names() const;
  const std::vector<at::Tensor>& parameters() const;
  /// The layout in force; a new object after a rebuild.
  std::shared_ptr<const BucketLayout> bucket_layout() const;
  /// May be called from any thread at any time; never waits for communication.
  ReducerState state() const;

 private:
  friend class NoSyncGuard;
  struct Impl;
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
