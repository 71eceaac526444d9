// SPDX-License-Identifier: Apache-2.0
// Seeded data for a case, the same for every subject and reference.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness {

/// The whole data set, drawn once from the counter-based generator of (seed, stream data).
///
/// Inputs are normal; tokens are uniform over the vocabulary. Targets can be learned: regression
/// targets are a sparse random linear map of the inputs plus noise of a tenth of their size,
/// classes are the largest of such a map. Sample i does not depend on how many samples there are.
class Dataset {
 public:
  /// Precondition: check_model() found nothing.
  explicit Dataset(const Case& value);

  /// Rows `samples` of the inputs: [n, input sizes...] in the model's dtype, or int64 tokens.
  /// Errors: UsageError for a sample that does not exist.
  at::Tensor inputs(const std::vector<std::int64_t>& samples) const;
  /// Rows of head `head`'s targets: [n, output sizes...] (mse, dot), or int64 class ids (cross
  /// entropy) of [n] for outputs [n, classes], [n, tokens] for [n, tokens, classes].
  /// Errors: UsageError for a head or sample that does not exist.
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
///
/// - "mse": squared differences; "mean" is over all elements of the batch and the output
/// - "dot": output times target, summed over the output; "mean" is over the batch alone
/// - "cross_entropy": "mean" is over the batch (and its tokens)
/// Errors: UsageError for an unknown name (cannot happen for a checked case).
at::Tensor head_loss(const std::string& loss, const std::string& reduction,
                     const at::Tensor& output, const at::Tensor& target);

}  // namespace lockstep::harness
