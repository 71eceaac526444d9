// SPDX-License-Identifier: Apache-2.0
// Which LibTorch this was built with; costs none of its headers but the one that says so.
#pragma once

#include <torch/version.h>

#include <utility>

namespace lockstep {

/// Major and minor; they compare in that order.
using LibTorchVersion = std::pair<int, int>;

inline constexpr LibTorchVersion kLibTorch{TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR};

}  // namespace lockstep
