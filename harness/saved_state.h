// SPDX-License-Identifier: Apache-2.0
// A training state as a script saves it: model and optimizer.
#pragma once

#include <string>

#include "harness/graph_model.h"
#include "harness/optimizer.h"

namespace lockstep::harness {

/// Parameters, buffers and optimizer state in LibTorch's archive format. Gradients, and which
/// parameters are frozen, are not part of it.
struct SavedState {
  std::string model, optimizer;
};

SavedState save_state(const GraphModel& model, const Optimizer& optimizer);

/// Puts the saved values into the tensors of a model of the same description.
void load_model(const SavedState& saved, GraphModel& model);

/// Errors: c10::Error for an optimizer of another kind or over other parameters.
void load_optimizer(const SavedState& saved, Optimizer& optimizer);

}  // namespace lockstep::harness
