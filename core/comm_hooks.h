// SPDX-License-Identifier: Apache-2.0
// The built-in communication hooks.
#pragma once

#include <cstdint>

#include "core/comm_hook.h"

namespace lockstep {

// All of them average over `communicator`, which outlives the wrapper; ranks that register a hook
// must register the same one. Quantisation and PowerSGD average sparse gradients as
// `all_reduce_hook` does. Values of sparse gradients are divided, those of one row added up, then
// rows of all ranks in rank order (G8).

/// Divides the buffer in place by the number of ranks (true division), then sums (N6).
CommHook all_reduce_hook(Communicator& communicator);

/// Casts to float16, divides there, and sums in float16 (N6): half the bytes. Values beyond 65504
/// become infinite before they are divided.
CommHook fp16_compress_hook(Communicator& communicator);

/// The same in bfloat16.
CommHook bf16_compress_hook(Communicator& communicator);

/// Communicates nothing: every rank keeps its own gradients, undivided (N3).
CommHook noop_hook();

// Note [Quantised buckets]
// Of the values x of one group, low = min(x, 0) and high = max(x, 0), in float32:
//   scale = max((high - low) / 255, 2^-23)       zero = clamp(-round(low / scale), 0, 255)
//   q     = clamp(round(x / scale) + zero, 0, 255), one byte each
//   x'    = (q - zero) * scale
// `round` takes halves to even. Ranks gather scales, zeros and q; the result is the sum of all x'
// in rank order, divided by the number of ranks, in float32.

/// One group per bucket.
CommHook quantize_per_tensor_hook(Communicator& communicator);

/// Every `channel_numel` consecutive elements are a group; the last one is filled up with zeros.
/// Errors: UsageError unless `channel_numel` > 0.
CommHook quantize_per_channel_hook(Communicator& communicator, std::int64_t channel_numel = 512);

struct PostLocalSgdOptions {
  /// Reductions that average over all ranks before local ones begin; >= 0.
  std::int64_t start_iter = 0;
  /// Averages the local ones; outlives the wrapper. Null: they stay local, undivided.
  Communicator* subgroup = nullptr;
};

/// Averages over all ranks at first, over a subgroup or not at all later. Whoever uses it averages
/// the parameters now and then.
/// Errors: UsageError for a negative `start_iter`.
CommHook post_local_sgd_hook(Communicator& communicator, const PostLocalSgdOptions& options);

}  // namespace lockstep
