// SPDX-License-Identifier: Apache-2.0
// What a simulation of time says, and the two simulations that say it.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/timing/collective.h"
#include "sim/timing/duration.h"
#include "sim/timing/setup.h"

namespace lockstep::sim::timing {

/// Since the beginning of the run.
struct StepTimes {
  Ps begin_ps = 0;        ///< the last rank begins
  Ps compute_end_ps = 0;  ///< the last rank has computed all, had it never waited within the step
  Ps end_ps = 0;          ///< the last rank has updated its parameters

  bool operator==(const StepTimes& other) const;
};

/// One collective as rank 0 sees it in the last step, since that rank began the step.
struct CollectiveTimes {
  std::int64_t micro_batch = 0;  ///< the one whose backward launched it
  std::int64_t bucket = 0;       ///< in launch order; -1: the used map
  std::int64_t num_parameters = 0;
  double bytes = 0.0;
  Algorithm algorithm = Algorithm::kRing;
  Ps ready_ps = 0;  ///< launched
  Ps begin_ps = 0;  ///< those before it are done
  Ps end_ps = 0;

  bool operator==(const CollectiveTimes& other) const;
};

struct Prediction {
  std::vector<StepTimes> steps;                        ///< [train.steps]
  std::vector<CollectiveTimes> timeline;               ///< rank 0, last step, in launch order
  std::vector<Ps> backward_begin_ps, backward_end_ps;  ///< the same, per synchronised backward
  Ps optimizer_ps = 0;
  Ps compute_ps = 0;            ///< forward and backward of a step without jitter or stragglers
  Ps communication_ps = 0;      ///< all collectives of the last step, each with a common begin
  double gradient_bytes = 0.0;  ///< of all parameters
  double wire_bytes = 0.0;      ///< sent by all ranks together in the last step
  std::int64_t num_elements = 0;
  std::int64_t num_classes = 0;      ///< of ranks that were told apart; unfolded: the ranks
  std::int64_t num_collectives = 0;  ///< over all steps
  std::int64_t num_events = 0;  ///< unfolded: taken from the queue; folded: (class, collective)
};

/// Folds ranks that cannot be told apart into classes. Time: ranks * steps draws of random numbers
/// if there is jitter of compute, else independent of the ranks but for naming their classes.
///
/// Order:  depends on `setup` alone, to the last bit.
/// Errors: UsageError if check_setup finds something, or for times longer than kLongestPs.
Prediction simulate_folded(const Setup& setup);

/// The same, message by message, for every rank: what simulate_folded is checked against. All times
/// are equal.
/// Errors: UsageError as above.
Prediction simulate_unfolded(const Setup& setup);

/// Of a step, from the last rank's begin to the last rank's end: the mean over all steps but the
/// first, which has one bucket (C12); over that one where there is no other.
double mean_step_ms(const Prediction& prediction);
/// The longest of the same steps.
double slowest_step_ms(const Prediction& prediction);
/// Likewise a mean: what a step takes beyond the slowest rank's compute and the update.
double mean_exposed_ms(const Prediction& prediction);

}  // namespace lockstep::sim::timing
