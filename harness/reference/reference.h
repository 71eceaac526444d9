// SPDX-License-Identifier: Apache-2.0
// The single-process references a subject is held against.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "harness/program.h"
#include "harness/run.h"

namespace lockstep::harness {

/// What went into one synchronised backward of the replay, for testing hypotheses about a
/// divergence. Tensors are copies; undefined where a rank had no gradient.
struct ReplayDetails {
  std::int64_t step = -1;  ///< in: the step to look at
  /// Tensors are plain() ones. [rank][trainable parameter]: what each rank put in, before division.
  std::vector<std::vector<at::Tensor>> contributions;
  /// [rank][micro-batch][trainable parameter]: the part of it that each micro-batch added.
  std::vector<std::vector<std::vector<at::Tensor>>> micro_contributions;
  std::int64_t divisor = 1;                  ///< of the sum over ranks
  std::vector<at::Tensor> reduced;           ///< per trainable parameter, after
  std::vector<at::Tensor> previous_reduced;  ///< the same, one step earlier; empty at step 0
};

/// Replays the ranks in one process: computes each rank's local gradients on batches of the same
/// shape and combines them with the bucket layout that `subject` recorded, in Gloo's order of
/// addition, with DDP's division (G3). The replicas share one copy of the parameters.
///
/// `fresh_optimizer_at`: a step before which the optimizer starts anew, without its state; or -1.
/// Returns one RankRun per rank: losses and buffers of each; gradients, parameters and optimizer
/// state with rank 0, also of steps that it has no inputs for.
/// Errors: what LibTorch throws for the program itself.
Run run_replay(const Program& program, const Run& subject, ReplayDetails* details = nullptr,
               std::int64_t fresh_optimizer_at = -1);

/// How to order one float32 serial reference differently, for the derived bound.
struct SerialVariant {
  std::string dtype;  ///< "float32" | "float64": overrides the model's
  /// 0: the order of compile_serial; else a seed for reordering and for moving gradients by half an
  /// epsilon of the largest one.
  std::uint64_t shuffle = 0;
  std::int64_t splits = 1;  ///< micro-batches that the global batch is accumulated over
};

/// Trains in one process on the global batch. Returns one RankRun.
Run run_serial(const Program& program, const SerialVariant& variant);

/// Trains `model` with the program of one rank, which synchronises nothing and meets nobody.
Run run_alone(const Program& program, const std::shared_ptr<GraphModel>& model);

}  // namespace lockstep::harness
