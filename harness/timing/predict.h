// SPDX-License-Identifier: Apache-2.0
// Predictions of the points of a study, the quantities in them, and whether its claims hold.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "harness/outcome.h"
#include "harness/timing/study.h"
#include "sim/timing/prediction.h"

namespace lockstep::harness {

/// Simulates every point; `progress` is told how many are done and may be empty.
/// Errors: UsageError for times that are too long, with the point's name.
std::vector<sim::timing::Prediction> predict(
    const TimingStudy& study, const std::function<void(std::int64_t num_done)>& progress = {});

/// A figure by name, the same that claims use (see schema.h):
///   step_ms, slowest_step_ms   of a step, mean and longest; micro_batch_ms: per micro-batch
///   samples_per_s              of all ranks together
///   compute_ms                 forward and backward of a step, without jitter and stragglers
///   communication_ms           all collectives of a step, one after the other
///   exposed_ms, exposed_share  of a step that is neither the slowest rank's compute nor the update
///   overlap_share              of the communication that is not exposed; 1 if there is none
///   gradient_bytes             of all parameters, once
///   wire_bytes, wire_bytes_per_rank   sent in a step, by all ranks and by one on average
///   buckets                    of a backward
/// Errors: InvariantError for another name.
double quantity(const std::string& name, const sim::timing::Setup& setup,
                const sim::timing::Prediction& prediction);

struct ClaimOutcome {
  bool holds = false;
  std::string text;  ///< what was claimed and what was found; if it does not hold, by how much
};

/// One per claim of the study, in order.
std::vector<ClaimOutcome> judge_claims(const TimingStudy& study,
                                       const std::vector<sim::timing::Prediction>& predictions);

/// The study as a case of a suite: as expected if every claim holds.
CaseResult judge_study(const TimingStudy& study);

/// The bucket cap that makes the shortest step, the other values being those of `setup`.
struct BestCap {
  std::int64_t cap_bytes = 0;  ///< the smallest of equally good ones
  double step_ms = 0.0;        ///< with it
  double given_ms = 0.0;       ///< with the cap of `setup`, over the same steps
};
/// Tries one bucket per tensor, all gradients in one bucket and caps between them, about 9 % apart,
/// over the first 20 steps.
BestCap best_bucket_cap(const sim::timing::Setup& setup);

}  // namespace lockstep::harness
