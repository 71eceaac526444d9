// SPDX-License-Identifier: Apache-2.0
// What may happen to a reducer between iterations: hooks of others, another group, a static graph.
#include <torch/types.h>

#include <utility>

#include "core/check.h"
#include "core/reducer.h"

namespace lockstep {

void Reducer::register_comm_hook(CommHook hook, const std::string& name) {
  LOCKSTEP_USAGE(hook != nullptr, "communication hook {} is empty", name);
  if (comm_hook_ != nullptr) {
    throw noted(DdpError(
        "hook_registered_twice",
        fmt::format("rank {}: communication hook {} cannot be registered, because {} is; a wrapper "
                    "has one for life, so construct another wrapper",
                    communicator_->rank(), name, comm_hook_name_)));
  }
  LOCKSTEP_USAGE(!owed_, "communication hook {} comes in the middle of a reduction", name);
  comm_hook_ = std::move(hook);
  comm_hook_name_ = name;
}

void Reducer::install(std::vector<PendingTensor> pending) {
  for (PendingTensor& each : pending) {
    installed_.push_back(std::move(each));
  }
}

void Reducer::wait_installed() {
  for (PendingTensor& each : std::exchange(installed_, {})) {
    each.wait();
  }
}

void Reducer::set_static_graph() {
  if (static_graph_) {
    return;
  }
  if (num_armed_ > 0) {
    throw noted(DdpError(
        "static_graph_too_late",
        fmt::format("rank {}: static_graph must be set before the first synchronised forward, but "
                    "there were {}; construct the wrapper with the option instead",
                    communicator_->rank(), num_armed_)));
  }
  static_graph_ = true;
  set_plan(initial_plan(parameters_, caps_, finds_unused(), sparse_));
}

void Reducer::set_communicator(Communicator& communicator) {
  communicator_ = &communicator;
  disarm();
  installed_.clear();
  unused_.clear();
  used_ = UsedMap(static_cast<std::int64_t>(parameters_.size()), parameters_.front().device());
  ready_order_.clear();
  has_rebuilt_ = false;
  static_recorded_ = false;
  // The initial layout, so that ranks that failed at different points, or are new, agree on it.
  set_plan(initial_plan(parameters_, caps_, finds_unused(), sparse_));
}

}  // namespace lockstep
