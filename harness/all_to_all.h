// SPDX-License-Identifier: Apache-2.0
// A block by which ranks exchange activations, as a model does that spreads its parts over ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/communicator.h"

namespace lockstep::harness {

/// The batch of each of W ranks is cut into W equal chunks; rank r gets chunk r of every rank, in
/// rank order. Gradients go back the same way, which is its own inverse.
///
/// One all_gather in forward and one in backward (call site "script"), both waited for at once.
/// Shapes: `input` is [N, ...] with N divisible by W, on all ranks alike; so is the result.
/// `communicator` outlives the graph.
/// Errors: UsageError where W does not divide N; in forward and backward what the collective
/// throws.
at::Tensor all_to_all(const at::Tensor& input, Communicator& communicator);

/// The same for all ranks at once, in one process: `inputs[r]` is rank r's.
std::vector<at::Tensor> joint_all_to_all(const std::vector<at::Tensor>& inputs);

}  // namespace lockstep::harness
