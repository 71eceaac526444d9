// SPDX-License-Identifier: Apache-2.0
// Training with a different number of inputs on each rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/communicator.h"

namespace lockstep {

// Note [Joining]
// A rank is active while its body runs and joined once that has returned. Every iteration of an
// active rank issues collectives; a joined rank must take part in them until nobody is active. So
//   - an active rank starts each iteration with an all-reduce to which it contributes 1;
//   - a joined rank contributes 0. The sum is the number of active ranks: if there are none, it is
//     done, otherwise it shadows one iteration of each joinable, in their order, and starts over.
// Ranks that have shadowed nothing at the end are the last joiners: their state is the one that all
// inputs went into, as far as any is.

struct JoinOptions {
  /// Without it `join` is just the body: no collective.
  bool enable = true;
  /// All ranks end in the iteration in which the first rank has no more input, with an error (O4).
  /// The way to go for models with collectives of their own, like SyncBatchNorm (O8).
  bool throw_on_early_termination = false;
  /// DDP divides gradients by the world size, as if joined ranks had gradients of zero; otherwise
  /// by the number of active ranks (O2). Communication hooks divide as they please.
  bool divide_by_initial_world_size = true;
};

class JoinContext;

/// Something that issues collectives in every iteration.
class Joinable {
 public:
  virtual ~Joinable() = default;

  /// All joinables of one join return the same one.
  virtual Communicator& join_communicator() = 0;
  /// The body is about to begin. `context` lives until `leave_join`.
  virtual void enter_join(JoinContext& context) = 0;
  /// All is over, well or badly. No collective.
  virtual void leave_join() noexcept = 0;
  /// Issues the collectives of one iteration of an active rank, contributing nothing.
  virtual void shadow_iteration() = 0;
  /// Called on all ranks after the last one has joined, to make their states equal (O3).
  virtual void finish_join(bool is_last_joiner) = 0;
};

/// One rank's view of a join in progress.
class JoinContext {
 public:
  JoinContext(std::vector<Joinable*> joinables, const JoinOptions& options);

  const JoinOptions& options() const { return options_; }

  /// A joinable calls this at the start of each iteration of an active rank. The first joinable's
  /// call issues the all-reduce, without waiting for it; the others' do nothing (O6). So the first
  /// joinable is the one that comes first in every iteration.
  /// Errors: DdpError `join_early_termination` if a rank has joined and that shall be an error.
  void notify(const Joinable& joinable);

  /// How many ranks were active in the last notification. Waits for it. Errors: CommError.
  std::int64_t num_active();

  /// Shadows until no rank is active, then finishes all joinables.
  /// Errors: DdpError `join_early_termination`; CommError; what a joinable throws.
  void shadow_others();

 private:
  void post(CallSite site, std::int64_t value);
  std::int64_t result();

  std::vector<Joinable*> joinables_;
  JoinOptions options_;
  Communicator& communicator_;
  at::Tensor sum_;
  std::unique_ptr<Work> work_;
};

/// Runs `body`, then shadows the other ranks' iterations until all have ended, then makes the
/// joinables' states equal. Every rank calls it at the same point with the same joinables and
/// options.
///
/// What `body` throws comes out at once and nothing is shadowed (O5): the other ranks wait.
/// Errors: UsageError, before any effect, without joinables or if they have different
///         communicators (K14); as JoinContext.
void join(const std::vector<Joinable*>& joinables, const std::function<void()>& body,
          const JoinOptions& options = {});

}  // namespace lockstep
