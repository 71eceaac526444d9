// SPDX-License-Identifier: Apache-2.0
// What a scenario does besides training: the events of [[at]] and the mistakes of [[fault]].
#pragma once

#include <string>
#include <vector>

#include "harness/program.h"
#include "harness/snapshot.h"
#include "harness/sync/gradient_sync.h"

namespace lockstep::harness {

struct TrainerParts;

/// Carries out one rank's events and faults at the places where the training loop calls.
class Script {
 public:
  explicit Script(const TrainerParts& parts) : parts_(parts) {}

  /// Before anything of the step. May end the process (faults `exit`, `crash`).
  void begin_step(const StepPlan& plan);

  /// Runs the events of this place, in file order. An event without `micro_batch` belongs to the
  /// first; after the step (`micro` < 0) that is not asked. Errors: ScriptError for a `raise`.
  void run(const StepPlan& plan, const std::string& when, std::int64_t micro);

  /// Faults that spoil gradients after they were synchronised.
  void after_sync(const StepPlan& plan, NamedParameters& parameters);

  bool leaves() const { return leaves_; }          ///< the loop ends here
  bool skips_step() const { return skips_step_; }  ///< nothing happens in this step
  bool detaches() const { return detaches_; }      ///< backward is left out: nothing to compute
  bool sums_loss() const { return sums_loss_; }
  bool keeps_sum() const { return keeps_sum_; }  ///< the sum over ranks is not to be divided
  bool clips_before_sync() const { return clips_before_sync_; }

 private:
  void run_event(const AtSpec& at, std::size_t index, const StepPlan& plan);
  void issue_collective(const AtSpec& at, std::size_t index, std::int64_t step);
  void evaluate(const AtSpec& at, const StepPlan& plan);
  void set_requires_grad(const std::vector<std::string>& names, bool value);

  const TrainerParts& parts_;  // outlives this: owned by the caller of train()
  bool leaves_ = false;
  bool skips_step_ = false;
  bool detaches_ = false;
  bool sums_loss_ = false;
  bool keeps_sum_ = false;
  bool clips_before_sync_ = false;
  std::vector<at::Tensor> previous_gradients_;
};

}  // namespace lockstep::harness
