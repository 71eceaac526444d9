// SPDX-License-Identifier: Apache-2.0
// What both simulations carry out: the plan of every step and the collectives in it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sim/timing/collective.h"
#include "sim/timing/pace.h"
#include "sim/timing/prediction.h"
#include "sim/timing/step_plan.h"

namespace lockstep::sim::timing {

struct PlannedStep {
  StepPlan plan;
  std::vector<std::vector<Collective>> collectives;  ///< [segment][launch]
};

/// What of a collective's times is known before it runs.
CollectiveTimes untimed(const Segment& segment, const Launch& launch, const Collective& collective);

class RunPlan {
 public:
  /// Errors: UsageError if check_setup finds something, or for times longer than kLongestPs.
  explicit RunPlan(const Setup& setup);

  const Setup& setup() const { return setup_; }
  const PaceModel& paces() const { return paces_; }

  /// Steps that do not differ are shared.
  std::shared_ptr<const PlannedStep> step(std::int64_t step) const;

  /// What does not depend on how the run goes: compute, communication, bytes, counts.
  Prediction begin_prediction() const;

 private:
  const Setup setup_;
  const PaceModel paces_;
  std::shared_ptr<const PlannedStep> first_, later_;
};

}  // namespace lockstep::sim::timing
