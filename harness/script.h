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

/// What becomes of an attempt at a step. Where ranks agree, the largest verdict holds for all.
enum class AttemptVerdict : std::int64_t { kGoOn, kSkip, kRetry };

/// The fault `replaced_parameter`.
void replace_parameter(GraphModel& model, const FaultSpec& fault);

/// Carries out one rank's events and faults at the places where the training loop calls.
class Script {
 public:
  explicit Script(const TrainerParts& parts) : parts_(parts) {}

  /// Before anything of the step. May end the process (faults `exit`, `crash`), and puts new
  /// tensors in the places of parameters (fault `replaced_parameter`): then returns true.
  bool begin_step(const StepPlan& plan);

  /// Before the step is tried, the first time or again.
  void begin_attempt();

  /// Runs the events of this place, in file order. An event without `micro_batch` or `forward`
  /// belongs to the first; after the step (`micro` < 0) that is not asked. Where train.agree says
  /// so, the ranks then agree. Errors: ScriptError for a `raise`; StandStill; what a collective
  /// throws.
  void run(const StepPlan& plan, const std::string& when, std::int64_t micro,
           std::int64_t forward = 0);

  /// The step is to be tried again, for the script has caught something.
  void retry() { verdict_ = AttemptVerdict::kRetry; }

  /// No more of the step is done in this attempt: the ranks agree now, if they have not yet.
  void end_attempt(const StepPlan& plan);

  AttemptVerdict verdict() const { return verdict_; }

  /// Faults that spoil gradients after they were synchronised.
  void after_sync(const StepPlan& plan, NamedParameters& parameters);

  bool leaves() const { return leaves_; }  ///< the loop ends here
  /// Whether the script ends the attempt, or the loop, here.
  bool stops() const { return leaves_ || verdict_ != AttemptVerdict::kGoOn; }
  bool detaches() const { return detaches_; }  ///< backward is left out: nothing to compute
  bool bypasses() const { return bypasses_; }  ///< forwards call the inner module
  bool keeps_gradients() const { return keeps_gradients_; }  ///< they are not zeroed
  double ascends() const { return ascends_; }  ///< rate of a first pass; 0: there is none
  bool sums_loss() const { return sums_loss_; }
  bool keeps_sum() const { return keeps_sum_; }  ///< the sum over ranks is not to be divided
  bool has_bad_batch() const { return has_bad_batch_; }  ///< the loss is not a number
  bool clips_before_sync() const { return clips_before_sync_; }

 private:
  void run_event(const AtSpec& at, std::size_t index, const StepPlan& plan);
  void agree(const StepPlan& plan);
  void add_buffer(const AtSpec& at, std::size_t index);
  void evaluate(const AtSpec& at, const StepPlan& plan);
  void copy_gradients();
  void sync_buffers(bool mean, const CollectiveTag& tag);
  void scale_buffers(double factor);
  void set_requires_grad(const std::vector<std::string>& names, bool value);
  void note_fault(std::size_t index);

  const TrainerParts& parts_;  // outlives this: owned by the caller of train()
  bool leaves_ = false;
  AttemptVerdict verdict_ = AttemptVerdict::kGoOn;
  bool has_agreed_ = false;        // in this attempt
  std::int64_t num_attempts_ = 0;  // at this step
  bool detaches_ = false;
  bool bypasses_ = false;
  bool keeps_gradients_ = false;
  double ascends_ = 0.0;
  bool sums_loss_ = false;
  bool keeps_sum_ = false;
  bool has_bad_batch_ = false;
  bool clips_before_sync_ = false;
  std::vector<at::Tensor> previous_gradients_;
};

}  // namespace lockstep::harness
