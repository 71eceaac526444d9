// SPDX-License-Identifier: Apache-2.0
// DDP's side of a join: what active ranks announce, and what a joined rank does in their place.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "core/join.h"

namespace lockstep {

class DdpEngine;

/// What a forward's collectives depend on. Active ranks announce it, since a joined rank cannot
/// know; sums of it also show whether they agree.
struct ForwardPlan {
  bool has_gradients = false;  ///< grad mode: buckets may be rebuilt
  bool synchronizes = false;   ///< neither no_grad nor no_sync: its backward reduces (O9)
  std::int64_t step = -1;      ///< goes into the tags
};

/// Owned by the engine it joins.
class DdpJoin : public Joinable {
 public:
  explicit DdpJoin(DdpEngine& engine) : engine_(engine) {}

  bool is_entered() const { return context_ != nullptr; }

  /// Active ranks, at the start of each forward: notifies and announces, without waiting (O1).
  void begin_forward(const ForwardPlan& own);
  /// Waits until all ranks agree on the plan, so that none is left alone in what it issues next.
  /// Errors: as `end_forward`.
  void agree() { agreed_plan(); }
  /// Active ranks, after the module's forward. Returns what the gradients of this iteration are to
  /// be divided by (O2). Errors: DdpError `join_plan_mismatch` on every rank if active ranks do not
  /// agree on the plan (O9); CommError.
  std::int64_t end_forward();
  /// Whether some rank has joined, once the plan is agreed on.
  bool some_joined();
  /// The highest active rank, whose buffers are the ones to take (J2). Errors: CommError.
  std::int64_t buffer_source();

  Communicator& join_communicator() override;
  void enter_join(JoinContext& context) override;
  void leave_join() noexcept override;
  void shadow_iteration() override;
  void finish_join(bool is_last_joiner) override;

 private:
  void announce(bool is_active, const ForwardPlan& plan);
  ForwardPlan agreed_plan();
  std::int64_t highest_rank(bool is_candidate);

  DdpEngine& engine_;
  JoinContext* context_ = nullptr;
  bool is_shadowing_ = false;
  at::Tensor sums_;  // of the last announcement: active, with gradients, synchronising, step + 1
  std::unique_ptr<Work> work_;
};

}  // namespace lockstep
