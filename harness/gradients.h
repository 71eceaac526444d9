// SPDX-License-Identifier: Apache-2.0
// What a training loop does to the gradients of its parameters, and with them. Undefined gradients
// are passed over, except where they are asked for.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::harness {

/// The gradients, in the order of `parameters`.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

/// Before the next backward: undefined (`to_none`), or zeroed in place.
void clear_gradients(std::vector<at::Tensor>& parameters, bool to_none);

/// Scales all gradients down to a norm of `norm_max` where theirs is larger. The norm is taken in
/// double: a float32 norm would depend on LibTorch's summation order.
void clip_gradients(std::vector<at::Tensor>& parameters, double norm_max);

/// Adds `rate` times the gradient to each parameter and makes the gradient undefined; returns what
/// the parameters were.
std::vector<at::Tensor> move_by_gradients(std::vector<at::Tensor>& parameters, double rate);
/// Puts those values back; none: nothing to do.
void restore(std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& values);

/// Which of `parameters` lie behind `outputs` in the graph: a backward from these comes by, be it
/// with a gradient or with none.
std::vector<bool> lie_behind(const std::vector<at::Tensor>& outputs,
                             const std::vector<at::Tensor>& parameters);

}  // namespace lockstep::harness
