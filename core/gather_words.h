// SPDX-License-Identifier: Apache-2.0
// The same few numbers from every rank, at every rank.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/communicator.h"

namespace lockstep {

/// One all-gather of `words`, which have the same length on all ranks; waits for it.
/// Shape: [world_size, words.size()], int64, on the CPU; row r is what rank r gave.
/// `device`: where the collective takes place. Errors: CommError.
at::Tensor gather_words(Communicator& communicator, const std::vector<std::int64_t>& words,
                        at::Device device, CollectiveTag tag);

}  // namespace lockstep
