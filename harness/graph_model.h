// SPDX-License-Identifier: Apache-2.0
// GraphModel: the LibTorch module behind a ModelSpec.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "harness/model.h"

namespace lockstep::harness {

/// Blocks are registered as children in file order. Parameters are drawn from the counter-based
/// generator of (seed, stream init, rank of the initialiser), never from LibTorch's.
class GraphModel : public torch::nn::Module {
 public:
  /// `exact`: small dyadic values instead of the usual ranges.
  /// `init_rank` is 0 unless every rank is to start from other values.
  GraphModel(const ModelSpec& spec, bool exact, std::uint64_t seed, std::int64_t init_rank);
  ~GraphModel() override;

  /// One tensor per head, in head order; a head whose blocks are skipped is left out, and its index
  /// is left out of `heads_run()`.
  std::vector<at::Tensor> forward(const at::Tensor& input, const Route& route);

  /// Heads that the last forward ran, in order; indices into output_shapes().
  const std::vector<std::int64_t>& heads_run() const;

  /// Blocks that the last forward ran, as bits in block order.
  const std::vector<bool>& blocks_run() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::harness
