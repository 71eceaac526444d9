// SPDX-License-Identifier: Apache-2.0
// Copies parameters and buffers of one rank to all others, few collectives for many tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/communicator.h"

namespace lockstep {

/// Most bytes that one coalesced broadcast carries; a larger tensor has a broadcast of its own.
constexpr std::int64_t kBroadcastCapBytes = 250 << 20;

struct BroadcastOptions {
  std::int64_t root = 0;
  std::int64_t cap_bytes = kBroadcastCapBytes;
  CallSite site = CallSite::kModuleStates;
  std::int64_t step = -1;
};

/// Gives every tensor of the list the value it has on rank `root` (B9).
///
/// Tensors are flattened together by dtype and device; those without elements are left out. At most
/// two broadcasts are in flight. Tensors are changed in place, outside autograd, and only where
/// their bytes differ, so that an equal buffer that autograd has saved stays valid.
/// Shapes: the same list of numels and dtypes on all ranks; layouts may differ.
/// Errors: CommError.
void broadcast_coalesced(Communicator& communicator, const std::vector<at::Tensor>& tensors,
                         const BroadcastOptions& options);

}  // namespace lockstep
