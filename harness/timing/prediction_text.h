// SPDX-License-Identifier: Apache-2.0
// Predictions for people and for programs.
#pragma once

#include <string>
#include <vector>

#include "harness/timing/predict.h"
#include "harness/timing/study.h"
#include "sim/timing/prediction.h"

namespace lockstep::harness {

/// One point in full: its figures, every collective of rank 0's last step, and when they happen.
std::string describe_point(const sim::timing::Setup& setup,
                           const sim::timing::Prediction& prediction);

/// A line per point, and the best value of every axis that is a choice. Precondition: one
/// prediction per point.
std::string describe_points(const TimingStudy& study,
                            const std::vector<sim::timing::Prediction>& predictions);

/// A line per claim.
std::string describe_claims(const std::vector<ClaimOutcome>& claims, bool colour);

/// All of it as JSON: {"schema": 1, "file", "title", "points": [{"name", "setup", quantities...,
/// "classes", "timeline", "steps_ms"}], "claims"}. Times in milliseconds. Ends with a line break.
std::string study_to_json(const TimingStudy& study,
                          const std::vector<sim::timing::Prediction>& predictions,
                          const std::vector<ClaimOutcome>& claims);

}  // namespace lockstep::harness
