// SPDX-License-Identifier: Apache-2.0
// The order in which gradients of outputs that share a tensor are added up behind DDP's sink.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace lockstep::harness {

/// Puts one autograd node over those of `outputs` that require a gradient and are no other leaf
/// than one of `trained`, as DDP does (E11): what they get is passed down in their order, all at
/// once. Not core's sink, so that an error in that one is not repeated here.
void join_outputs(std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& trained);

}  // namespace lockstep::harness
