// SPDX-License-Identifier: Apache-2.0
// Seeded data for a case, the same for every subject and reference.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness {

/// The whole data set, drawn once from the counter-based generator of (seed, stream data).
class Dataset {
 public:
  explicit Dataset(const Case& value);

  /// Rows `samples` of the inputs: [n, input sizes...] in the model's dtype, or int64 tokens.
  at::Tensor inputs(const std::vector<std::int64_t>& samples) const;
  /// Rows of head `head`'s targets: [n, output sizes...] (mse, dot) or [n] int64 (cross_entropy).
  at::Tensor targets(std::int64_t head, const std::vector<std::int64_t>& samples) const;
  std::int64_t num_heads() const { return static_cast<std::int64_t>(targets_.size()); }

  /// The same data in another floating dtype ("float32" | "float64"); values are converted, not
  /// drawn anew.
  Dataset to(const std::string& dtype) const;

 private:
  Dataset() = default;
  at::Tensor inputs_;
  std::vector<at::Tensor> targets_;
};

/// Loss of one head over its batch, before any scaling.
/// Errors: UsageError for an unknown name (cannot happen for a checked case).
at::Tensor head_loss(const std::string& loss, const std::string& reduction,
                     const at::Tensor& output, const at::Tensor& target);

}  // namespace lockstep::harness
