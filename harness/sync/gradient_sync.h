// SPDX-License-Identifier: Apache-2.0
// The seam between the training loop and whatever makes the ranks' gradients one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "core/ddp_engine.h"
#include "harness/case.h"
#include "harness/graph_model.h"
#include "harness/run.h"

namespace lockstep::harness {

class Disturbances;

/// What one replica is given in a forward.
struct ReplicaInput {
  std::size_t replica = 0;
  at::Tensor input;
  const Route* route = nullptr;
};

/// Synchronises the gradients of one or more replicas of a model. A subject has one replica per
/// rank; the replay reference holds all ranks' replicas in one object.
///
/// Order: run once, around the whole loop. Per step: begin_step; then per micro-batch: one forward
/// or
///       several of every replica, the caller's backwards, after_backward.
/// Threads: the rank's own thread, except `state` and `plan`, which any thread may call at any
/// time.
class GradientSync {
 public:
  virtual ~GradientSync() = default;

  /// Runs the training loop. With join it returns only when all ranks' loops have ended (O).
  virtual void run(const std::function<void()>& loop) = 0;

  /// Gradients have just been zeroed.
  virtual void begin_step(std::int64_t step) = 0;

  /// One forward of each of these replicas, in rising order; several calls may share them out.
  /// `sync`: the backward that follows is to synchronise. Returns the outputs of each.
  virtual std::vector<std::vector<at::Tensor>> forward(const std::vector<ReplicaInput>& inputs,
                                                       bool sync) = 0;

  /// The script has put a copy in the place of a replica's parameter's gradient, which was `old`.
  virtual void gradient_was_copied(const at::Tensor& /*parameter*/, const at::Tensor& /*old*/) {}

  /// All replicas' backwards are done; afterwards `.grad` is final for this micro-batch.
  virtual void after_backward(bool sync) = 0;

  /// How the last synchronised backward combined gradients.
  virtual std::shared_ptr<const ReductionPlan> plan() const = 0;

  /// What is still awaited; an empty state where nothing can be.
  virtual ReducerState state() const = 0;
};

/// What a subject's synchronisation is made of.
struct SyncParts {
  const Case* value = nullptr;
  std::shared_ptr<GraphModel> model;
  Communicator* communicator = nullptr;  ///< outlives the synchronisation
  Observer* observer = nullptr;          ///< may be null
  std::vector<std::string> ignored;      ///< parameters that are forgotten (a planted fault)
  Disturbances* disturbances = nullptr;  ///< told of hook faults that are carried out; may be null
};

/// The subject named by `case.ddp.sync`. Issues the constructor's collectives.
std::unique_ptr<GradientSync> make_gradient_sync(const SyncParts& parts);

/// `ddp.join`, or what the fault `join_divisor` makes of it.
std::string join_of(const Case& value);

/// A bucket layout in the indices of all trainable parameters. `trainable_index[i]` is that of the
/// i-th parameter of the layout, which leaves ignored ones out.
std::shared_ptr<const ReductionPlan> plan_of(const BucketLayout& layout,
                                             const std::vector<std::int64_t>& trainable_index);

/// The trainable parameters in DDP's index order (A1), with their names.
struct NamedParameters {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};
NamedParameters trainable_parameters(const GraphModel& model);
NamedParameters all_parameters(const GraphModel& model);
NamedParameters all_buffers(const GraphModel& model);

}  // namespace lockstep::harness
