// SPDX-License-Identifier: Apache-2.0
// A node between the module's outputs and the loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace lockstep {

/// Puts one autograd node over all of `outputs`: each is replaced by a clone that hangs behind it,
/// so that changing a result in place is safe. Its backward is the identity (E11).
///
/// It serves two purposes. Outputs that do not take part in the loss send undefined gradients down
/// the graph, so the hooks of all parameters that the forward used still run. And `on_backward` is
/// called at the start of the outermost backward that reaches any of the outputs.
/// Outputs may be without a graph; they then require grad afterwards.
void attach_sink(const std::vector<at::Tensor*>& outputs, std::function<void()> on_backward);

}  // namespace lockstep
