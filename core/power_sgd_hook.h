// SPDX-License-Identifier: Apache-2.0
// PowerSGD: gradients as products of two thin matrices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/comm_hook.h"

namespace lockstep {

struct PowerSgdOptions {
  /// Columns of the factors; positive.
  std::int64_t rank = 1;
  /// Reductions that average as `all_reduce_hook` does before compression begins; not negative. At
  /// least 2 with error feedback or warm start, because buckets change once after the first (N8).
  std::int64_t start_iter = 2;
  /// A gradient [n, m] is compressed only if (n + m) * min(n, m, rank) * min_compression_rate
  /// < n * m; positive.
  double min_compression_rate = 2.0;
  bool use_error_feedback = true;  ///< what compression lost is added to the next gradient
  bool warm_start = true;          ///< the last Q is the next start, else a new random one
  std::uint64_t seed = 0;          ///< of the initial Q; the same on all ranks
};

// Note [PowerSGD]
// Of one bucket, W ranks, per compressed gradient M [n, m] (dimensions behind the first are
// flattened), with r = min(n, m, rank):
//   M += what compression lost last time          (error feedback; zeros at first)
//   Q  = orthonormal columns of the start [m, r]   P = orthonormal columns of sum over ranks of M Q
//   Q  = (sum over ranks of M^T P) / W             M' = P Q^T, the result
//   lost = M - M'
// Gradients of fewer than two dimensions and those that would not shrink enough are averaged as
// they are and lose nothing. Three collectives, one after the other: of the plain gradients, which
// starts inside backward, of all P, and of all Q. A start with a vanishing column is drawn anew.

/// Errors: UsageError for options outside their bounds. What is lost is kept per bucket index and
/// forgotten when the bucket's layout changes.
CommHook power_sgd_hook(Communicator& communicator, const PowerSgdOptions& options = {});

/// Makes the columns of `matrix` [n, r] orthonormal in place (modified Gram-Schmidt). A column that
/// vanishes stays zero. False if there is one.
bool orthogonalize(const at::Tensor& matrix);

}  // namespace lockstep
