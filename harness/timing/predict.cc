// SPDX-License-Identifier: Apache-2.0
// Predictions and the figures in them.
#include "harness/timing/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/check.h"

namespace lockstep::harness {

using sim::timing::Prediction;
using sim::timing::Setup;

std::vector<Prediction> predict(const TimingStudy& study,
                                const std::function<void(std::int64_t num_done)>& progress) {
  std::vector<Prediction> predictions;
  for (const TimingPoint& point : study.points) {
    try {
      predictions.push_back(sim::timing::simulate_folded(point.setup));
    } catch (const UsageError& error) {
      const std::string at = point.name.empty() ? "" : fmt::format(" [{}]", point.name);
      throw UsageError(fmt::format("{}{}: {}", study.file, at, error.what()));
    }
    if (progress) progress(static_cast<std::int64_t>(predictions.size()));
  }
  return predictions;
}

double quantity(const std::string& name, const Setup& setup, const Prediction& prediction) {
  const double step_ms = mean_step_ms(prediction);
  const double exposed_ms = mean_exposed_ms(prediction);
  const double communication_ms = sim::timing::to_ms(prediction.communication_ps);
  const auto ranks = static_cast<double>(setup.world.ranks);
  const auto micro_batches = static_cast<double>(setup.train.micro_batches);
  if (name == "step_ms") return step_ms;
  if (name == "slowest_step_ms") return slowest_step_ms(prediction);
  if (name == "micro_batch_ms") return step_ms / micro_batches;
  if (name == "samples_per_s") {
    const auto samples = static_cast<double>(setup.train.samples_per_micro_batch);
    return step_ms > 0 ? ranks * samples * micro_batches / step_ms * 1e3 : 0.0;
  }
  if (name == "compute_ms") return sim::timing::to_ms(prediction.compute_ps);
  if (name == "communication_ms") return communication_ms;
  if (name == "exposed_ms") return exposed_ms;
  if (name == "exposed_share") return step_ms > 0 ? exposed_ms / step_ms : 0.0;
  if (name == "overlap_share") {
    return communication_ms > 0 ? std::max(0.0, 1.0 - exposed_ms / communication_ms) : 1.0;
  }
  if (name == "gradient_bytes") return prediction.gradient_bytes;
  if (name == "wire_bytes") return prediction.wire_bytes;
  if (name == "wire_bytes_per_rank") return prediction.wire_bytes / ranks;
  LOCKSTEP_CHECK(name == "buckets", "unknown quantity '{}'", name);
  std::int64_t buckets = 0;
  for (const auto& times : prediction.timeline) buckets = std::max(buckets, times.bucket + 1);
  return static_cast<double>(buckets);
}

CaseResult judge_study(const TimingStudy& study) {
  CaseResult result;
  result.file = study.file;
  result.title = study.title;
  result.backend = "sim";
  result.outcome.kind = OutcomeKind::kPredicted;
  result.as_expected = true;
  std::vector<Prediction> predictions;
  try {
    predictions = predict(study);
  } catch (const UsageError& error) {
    result.as_expected = false;
    result.complaints.emplace_back(error.what());
    return result;
  }
  for (const ClaimOutcome& outcome : judge_claims(study, predictions)) {
    if (!outcome.holds) {
      result.as_expected = false;
      result.complaints.push_back(outcome.text);
      continue;
    }
    std::string& reason = result.outcome.reason;
    reason += (reason.empty() ? "holds: " : "\nholds: ") + outcome.text;
  }
  return result;
}

BestCap best_bucket_cap(const Setup& setup) {
  double all_bytes = 0.0;
  double least_bytes = std::numeric_limits<double>::max();
  for (const sim::timing::LayerSetup& layer : setup.layers) {
    for (const std::int64_t numel : layer.parameters) {
      const double bytes =
          static_cast<double>(numel) * static_cast<double>(setup.compute.element_bytes);
      all_bytes += bytes * static_cast<double>(layer.count);
      least_bytes = std::min(least_bytes, std::max(1.0, bytes));
    }
  }
  constexpr double kStep = 1.0905077326652577;  // 2^(1/8)
  BestCap best;
  Setup trial = setup;
  trial.train.steps = std::min<std::int64_t>(setup.train.steps, 20);
  best.given_ms = mean_step_ms(sim::timing::simulate_folded(trial));
  const auto attempt = [&](double cap) {
    trial.ddp.bucket_cap_bytes = static_cast<std::int64_t>(std::ceil(cap));
    const double step_ms = mean_step_ms(sim::timing::simulate_folded(trial));
    if (best.cap_bytes == 0 || step_ms < best.step_ms) {
      best.cap_bytes = trial.ddp.bucket_cap_bytes;
      best.step_ms = step_ms;
    }
  };
  for (double cap = least_bytes; cap < all_bytes; cap *= kStep) attempt(cap);
  attempt(all_bytes);
  return best;
}

}  // namespace lockstep::harness
