// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel<M>: wraps a LibTorch module so that its gradients are averaged over
// ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/communicator.h"
#include "core/ddp_engine.h"
#include "core/join.h"
#include "core/observer.h"
#include "core/output_tensors.h"

namespace lockstep {

/// Wraps module type `M` (any class with `forward`, derived from torch::nn::Module).
///
/// The wrapped module's parameters must not be added, removed, replaced or frozen afterwards (A10).
/// Threads: one thread; backward may run hooks on LibTorch's threads.
template <typename M>
class DistributedDataParallel {
 public:
  /// Issues the constructor collectives (A6): every rank must construct at the same point.
  /// `communicator` outlives this object.
  /// Errors: UsageError for a module without trainable parameters (A3) or contradictory options;
  ///         DdpError `model_mismatch` where ranks hold different models (B1, B2).
  DistributedDataParallel(std::shared_ptr<M> module, Communicator& communicator,
                          const DdpOptions& options = {})
      : module_(std::move(module)), engine_(*module_, communicator, options) {}

  /// The module's forward, with buffers synchronised before and the reducer armed after (E).
  /// Returns whatever the module returns.
  template <typename... Args>
  auto forward(Args&&... args) {
    engine_.before_forward();
    auto output = module_->forward(std::forward<Args>(args)...);
    if (engine_.wants_output_tensors()) {
      std::vector<at::Tensor*> tensors;
      collect_output_tensors(output, tensors);
      engine_.after_forward(tensors);
    } else {
      engine_.after_forward({});
    }
    return output;
  }

  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }

  /// While the guard lives, forwards do not arm the reducer, so that gradients accumulate locally
  /// (H1). Nests; restores the previous state.
  NoSyncGuard no_sync() { return engine_.no_sync(); }

  /// Runs `body` under `no_sync`.
  void no_sync(const std::function<void()>& body) {
    const NoSyncGuard guard = no_sync();
    body();
  }

  /// The training loop's own step number, put into collective tags and errors. Without it, tags
  /// count synchronised forwards.
  void set_step(std::int64_t step) { engine_.set_step(step); }

  /// Runs `body`, on each rank with as many forwards as it has inputs; see `lockstep::join`.
  ///
  /// In the end all ranks have the parameters and buffers of the last rank to run out, the highest
  /// if there are several (O3). Every forward counts as an iteration. Ranks that are still active
  /// use no_sync and no_grad alike, and let a backward follow every synchronised forward: joined
  /// ranks count on it.
  /// Errors: UsageError for a join inside a join; on every rank DdpError `join_plan_mismatch`, and
  ///         `join_static_graph` if a rank has joined before the first synchronised iteration of a
  ///         static graph; as `lockstep::join`.
  void join(const std::function<void()>& body, const JoinOptions& options = {}) {
    lockstep::join({&engine_.joinable()}, body, options);
  }

  /// See the methods of the same names in DdpEngine.
  void register_comm_hook(CommHook hook, const std::string& name) {
    engine_.register_comm_hook(std::move(hook), name);
  }
  void register_buffer_hook(BufferHook hook,
                            BufferHookPoint point = BufferHookPoint::kPostForward) {
    engine_.register_buffer_hook(std::move(hook), point);
  }
  void set_static_graph() { engine_.set_static_graph(); }
  void check_finalized() { engine_.check_finalized(); }
  void remove_hooks() { engine_.remove_hooks(); }
  void set_communicator(Communicator& communicator) { engine_.set_communicator(communicator); }
  DdpLoggingData logging_data() const { return engine_.logging_data(); }

  M& module() { return *module_; }
  const std::shared_ptr<M>& module_ptr() const { return module_; }
  DdpEngine& engine() { return engine_; }
  const DdpEngine& engine() const { return engine_; }

 private:
  std::shared_ptr<M> module_;
  DdpEngine engine_;
};

}  // namespace lockstep
