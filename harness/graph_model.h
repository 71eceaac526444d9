// SPDX-License-Identifier: Apache-2.0
// GraphModel: the LibTorch module behind a ModelSpec.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "harness/model.h"

namespace lockstep::harness {

struct ReplicaForward;

/// Called by a forward for every block that it ran, in order, with what went in and came out.
/// `stage` and `block` are indices as in model.forward and model.blocks.
using BlockWatcher = std::function<void(std::int64_t stage, std::int64_t block,
                                        const at::Tensor& input, const at::Tensor& output)>;

/// What a block is given in the place of `input`.
using InputMover = std::function<at::Tensor(const at::Tensor& input)>;

/// Blocks are registered as children in file order; "same NAME" registers the other block's module
/// under a second name. Parameters are drawn from the counter-based generator of (seed, stream
/// init, rank of the initialiser), never from LibTorch's. Frozen ones do not require grad.
/// Threads: one at a time.
class GraphModel : public torch::nn::Module {
 public:
  /// `exact`: small dyadic values instead of the usual ranges.
  /// `init_rank` is 0 unless every rank is to start from other values.
  /// Errors: UsageError if check_model() would find something wrong with `spec` itself.
  GraphModel(const ModelSpec& spec, bool exact, std::uint64_t seed, std::int64_t init_rank);
  ~GraphModel() override;

  /// sync_batch_norm blocks take their statistics from all ranks of `communicator`, which outlives
  /// this and every graph. Without one, and in evaluation, they are batch_norm.
  void set_communicator(Communicator& communicator);

  /// One tensor per head, in head order; a head whose blocks are skipped is left out, and its index
  /// is left out of `heads_run()`. See Route for what leaving blocks out means.
  /// Precondition: check_route() found nothing.
  std::vector<at::Tensor> forward(const at::Tensor& input, const Route& route);

  /// Heads that the last forward ran, in order; indices into output_shapes().
  const std::vector<std::int64_t>& heads_run() const;

  /// Blocks that the last forward ran, as bits in block order. A module with two names counts under
  /// the name it was run by.
  const std::vector<bool>& blocks_run() const;

  /// From now on forwards tell `watcher` of their blocks; an empty one ends that.
  void watch_blocks(BlockWatcher watcher);

  /// From now on every block of a forward gets what `mover` makes of its input, of which a watcher
  /// is told as it was; an empty one ends that.
  void move_inputs(InputMover mover);

  /// Puts a new leaf of the same values in the place of a parameter, under all of its names, the
  /// way a script does that assigns to one. The old tensor stays with whoever holds it. Errors:
  /// UsageError if there is no parameter of this name.
  void replace_parameter(const std::string& name);
  /// The same with a tensor of other values, sizes or dtype.
  void replace_parameter(const std::string& name, const at::Tensor& fresh);
  /// The same with `other` itself, which may be another parameter.
  void tie_parameter(const std::string& name, const at::Tensor& other);

 private:
  friend std::vector<std::vector<at::Tensor>> forward_together(
      const std::vector<ReplicaForward>& replicas);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// What one replica's forward is given.
struct ReplicaForward {
  GraphModel* model = nullptr;
  at::Tensor input;
  const Route* route = nullptr;
};

/// One forward of each of several replicas of a model, stage by stage, so that a sync_batch_norm in
/// training normalises over the batches of all replicas that run it, and an all_to_all exchanges
/// between them. Returns what each replica's
/// own forward would, in the same order.
std::vector<std::vector<at::Tensor>> forward_together(const std::vector<ReplicaForward>& replicas);

}  // namespace lockstep::harness
