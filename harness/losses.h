// SPDX-License-Identifier: Apache-2.0
// The losses that cases are trained with.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "harness/program.h"

namespace lockstep::harness {

/// "input_gradient" and "anchored_input_gradient": their targets are not looked at.
bool is_input_gradient(const std::string& loss);
/// The squares of the gradient of the sum of `output` by `input`, added up; anchored: plus zero
/// times the output, so that every parameter behind the output has a gradient. `input` requires a
/// gradient.
at::Tensor input_gradient_loss(const std::string& loss, const at::Tensor& output,
                               const at::Tensor& input);

/// Loss of one head over its batch, before any scaling.
///
/// - "mse": squared differences; "mean" is over all elements of the batch and the output
/// - "dot": output times target, summed over the output; "mean" is over the batch alone
/// - "cross_entropy": "mean" is over the batch (and its tokens)
/// Errors: UsageError for an unknown name (cannot happen for a checked case).
at::Tensor head_loss(const std::string& loss, const std::string& reduction,
                     const at::Tensor& output, const at::Tensor& target);

/// What a loss is taken of, for one head.
struct LossInputs {
  at::Tensor input, output, target;
};
/// The loss of one part of a micro-batch, before any scaling: a mean is over `part.mean_over`
/// samples. `sums`: it is a sum after all, whatever the case says.
at::Tensor part_loss(const TrainSpec& train, bool sums, const Part& part, const LossInputs& inputs);

}  // namespace lockstep::harness
