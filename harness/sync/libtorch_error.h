// SPDX-License-Identifier: Apache-2.0
// The errors of PyTorch's reducer in our vocabulary.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::harness {

/// The kind that our DDP gives the error whose text LibTorch words like `message`: K1
/// "reduction_unfinished", K2 "ready_twice", K3 and K4 "static_graph_changed", K8
/// "undefined_gradient", K9 "not_a_bucket_view", K12 "model_mismatch". Anything else is "libtorch".
std::string libtorch_error_kind(std::string_view message);

}  // namespace lockstep::harness
