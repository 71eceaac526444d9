// SPDX-License-Identifier: Apache-2.0
// Seeded data for a case, the same for every subject and reference.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness {

// Note [Exact data]
// With data.exact, initial weights are -1, 0 or 1 (about two per output that are not 0), inputs and
// targets are -1, 0 or 1 times a power of two. The powers are chosen from the learning rate, the
// batch and the loss such that a step moves weights by about as much as they are: any dyadic
// learning rate does, and what limits the number of exact steps is how fast sums and products
// outgrow the significand. That the case stays exact is not promised here; the trainer proves it.
//
// Needed: ranks, batch, micro-batches and (mse, mean) outputs that are powers of two; a dyadic
// learning rate, momentum and weight decay; plain SGD without clipping; linear, conv2d, embedding,
// scale, relu, identity, flatten, dropout 0.5. Steps that stayed exact in float32 for every one of
// 25 seeds, learning rate 0.125, in one process and as gradients of ranks added up:
//
//   model (linear layers)            | dot, 2 x 4 | dot, 4 x 8 | mse, 2 x 4 | mse, 4 x 8 samples
//   8-4                              | 8 and more | 8 and more | 2          | 1
//   8-4 without bias                 | 8 and more | 8 and more | 4          | 3
//   8-16-4                           | 8          | 4          | 1          | 1
//   8-16-4 without bias              | 8          | 5          | 2          | 1
//   8-16-16-4                        | 3          | 2          | 1          | 1
//   8-16-16-4 without bias           | 3          | 3          | 1          | 1
//   embedding 16 4, linear 4 4       | 8          | 4          | 1          | 1
//   conv2d 1 4 3, relu, linear 64 4  | 5          | 3          | 1          | 1
//
// So: use "dot", which is linear in the output, for several steps and deep models; "mse" squares
// errors on their way into weights and is for one to three steps of a small model, best without
// bias. Momentum 0.5 costs about a step of "dot". float64 about doubles the number of steps.

/// The whole data set, drawn once from the counter-based generator of (seed, stream data).
///
/// Inputs are uniform with variance 1; tokens are uniform over the vocabulary. Targets can be
/// learned: regression targets are a sparse random linear map of the inputs plus noise of a tenth
/// of their size, classes are the largest of such a map. Exact data: see Note [Exact data]. Order:
/// sample i does not depend on how many samples there are.
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

}  // namespace lockstep::harness
