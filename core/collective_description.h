// SPDX-License-Identifier: Apache-2.0
// What a collective is, checked when it is launched, and as errors of real transports tell it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "core/communicator.h"

namespace lockstep {

/// One collective as errors and watchdogs see it.
struct CollectiveDescription {
  std::int64_t seq = 0;  ///< position in this rank's sequence, from 0
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;  ///< all_reduce only
  CollectiveTag tag;
  std::int64_t numel = 0;  ///< all_gather: of the input
  std::string dtype;       ///< "Float", "Long", ...; empty for a barrier
  std::int64_t root = -1;  ///< broadcast only
};

/// "all_reduce bucket 1 at step 3 (seq 17, 100 Float, sum)".
std::string describe(const CollectiveDescription& collective);

// Descriptions of what a rank asks for; `seq` is the transport's to fill in.
// Errors: UsageError for a tensor that is undefined, not dense or not contiguous; a root that is no
//         rank; an output that does not hold a row of the input's elements for every rank.
CollectiveDescription describe_all_reduce(const at::Tensor& tensor, ReduceOp op, CollectiveTag tag);
CollectiveDescription describe_broadcast(const at::Tensor& tensor, std::int64_t root,
                                         std::int64_t world_size, CollectiveTag tag);
CollectiveDescription describe_all_gather(const at::Tensor& output, const at::Tensor& input,
                                          std::int64_t world_size, CollectiveTag tag);
CollectiveDescription describe_barrier(CollectiveTag tag);

}  // namespace lockstep
