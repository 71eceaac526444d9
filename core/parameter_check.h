// SPDX-License-Identifier: Apache-2.0
// Do all ranks train the same parameters?
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/communicator.h"

namespace lockstep {

/// Compares number, sizes, strides and dtypes of `parameters` over all ranks, in index order (B1,
/// B2).
///
/// Two all-gathers: of (number of parameters, length of their description), then, if the numbers
/// agree, of the descriptions, filled up to the longest. So every rank learns of a difference, the
/// first rank included, and none is left waiting (B3, B4).
/// Errors: DdpError `model_mismatch`, the same text on every rank, naming the first parameter that
///         differs as this rank calls it; CommError.
void verify_parameters(Communicator& communicator, const std::vector<at::Tensor>& parameters,
                       const std::vector<std::string>& names);

}  // namespace lockstep
