// SPDX-License-Identifier: Apache-2.0
// Announcements of forwards, and the agreement that they need.
#include "core/ddp_join.h"

#include <torch/types.h>

#include "core/check.h"
#include "core/ddp_engine.h"

namespace lockstep {

// Note [What a joined rank shadows]
// The collectives of a forward and its backward, in this order (O1): the notification and the plan;
// broadcasts of a rebuild that is due (D8); the buffers, taken from the highest active rank; the
// comparisons of checked mode; zeros for every bucket and, with find_unused_parameters, for the
// used map. What is due follows from state that all ranks of a reducer have in common and from the
// plan. The plan's step makes the tags of all these equal on all ranks. Where ranks do not agree on
// the plan a joined rank stops, so active ones wait for the plan before anything else is issued.

void DdpJoin::announce(bool is_active, const ForwardPlan& plan) {
  const std::int64_t active = is_active ? 1 : 0;
  sums_ = at::tensor({active, plan.has_gradients ? active : 0, plan.synchronizes ? active : 0,
                      active * (plan.step + 1)},
                     at::kLong);
  work_ = join_communicator().all_reduce(sums_, ReduceOp::kSum, {CallSite::kJoinPlan, -1, -1});
}

ForwardPlan DdpJoin::agreed_plan() {
  work_->wait();
  const auto* sums = sums_.data_ptr<std::int64_t>();
  const std::int64_t active = sums[0];
  const auto all_or_none = [active](std::int64_t count) { return count == 0 || count == active; };
  if (!all_or_none(sums[1]) || !all_or_none(sums[2]) || sums[3] % active != 0) {
    throw DdpError(
        "join_plan_mismatch",
        fmt::format("rank {}: of {} ranks that still have inputs, {} record gradients and {} "
                    "synchronise them in this iteration; inside join, no_grad, no_sync and steps "
                    "must be the same on all of them",
                    join_communicator().rank(), active, sums[1], sums[2]));
  }
  return {sums[1] > 0, sums[2] > 0, sums[3] / active - 1};
}

void DdpJoin::begin_forward(const ForwardPlan& own) {
  context_->notify(*this);
  announce(/*is_active=*/true, own);
}

std::int64_t DdpJoin::end_forward() {
  agreed_plan();
  return context_->options().divide_by_initial_world_size ? join_communicator().world_size()
                                                          : sums_[0].item<std::int64_t>();
}

std::int64_t DdpJoin::highest_rank(bool is_candidate) {
  const at::Tensor rank =
      at::full({1}, is_candidate ? join_communicator().rank() : std::int64_t{-1}, at::kLong);
  join_communicator().all_reduce(rank, ReduceOp::kMax, {CallSite::kJoinSource, -1, -1})->wait();
  return rank.item<std::int64_t>();
}

std::int64_t DdpJoin::buffer_source() { return highest_rank(!is_shadowing_); }

bool DdpJoin::some_joined() {
  return sums_[0].item<std::int64_t>() < join_communicator().world_size();
}

Communicator& DdpJoin::join_communicator() { return engine_.communicator(); }

void DdpJoin::enter_join(JoinContext& context) {
  LOCKSTEP_USAGE(context_ == nullptr, "rank {}: the wrapper is in a join already",
                 join_communicator().rank());
  context_ = &context;
}

void DdpJoin::leave_join() noexcept {
  context_ = nullptr;
  is_shadowing_ = false;
  work_.reset();
}

void DdpJoin::shadow_iteration() {
  is_shadowing_ = true;
  announce(/*is_active=*/false, {});
  engine_.shadow_forward(agreed_plan());
}

void DdpJoin::finish_join(bool is_last_joiner) {
  engine_.broadcast_states(highest_rank(is_last_joiner));
}

}  // namespace lockstep
