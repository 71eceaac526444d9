// SPDX-License-Identifier: Apache-2.0
// Figures of a prediction.
#include "sim/timing/prediction.h"

#include <algorithm>
#include <tuple>

namespace lockstep::sim::timing {

namespace {

/// The mean over the steps that count.
template <class Figure>
double mean_over_steps(const Prediction& prediction, const Figure& figure) {
  const std::size_t first = prediction.steps.size() > 1 ? 1 : 0;
  double sum = 0.0;
  for (std::size_t i = first; i < prediction.steps.size(); ++i) {
    sum += static_cast<double>(figure(prediction.steps[i]));
  }
  return sum / static_cast<double>(prediction.steps.size() - first);
}

}  // namespace

bool StepTimes::operator==(const StepTimes& other) const {
  return std::tie(begin_ps, compute_end_ps, end_ps) ==
         std::tie(other.begin_ps, other.compute_end_ps, other.end_ps);
}

bool CollectiveTimes::operator==(const CollectiveTimes& other) const {
  const auto fields = [](const CollectiveTimes& t) {
    return std::tie(t.micro_batch, t.bucket, t.num_parameters, t.bytes, t.algorithm, t.ready_ps,
                    t.begin_ps, t.end_ps);
  };
  return fields(*this) == fields(other);
}

double mean_step_ms(const Prediction& prediction) {
  return mean_over_steps(prediction, [](const StepTimes& s) { return s.end_ps - s.begin_ps; }) /
         kPsPerMs;
}

double slowest_step_ms(const Prediction& prediction) {
  Ps slowest_ps = 0;
  for (std::size_t i = prediction.steps.size() > 1 ? 1 : 0; i < prediction.steps.size(); ++i) {
    slowest_ps = std::max(slowest_ps, prediction.steps[i].end_ps - prediction.steps[i].begin_ps);
  }
  return to_ms(slowest_ps);
}

double mean_exposed_ms(const Prediction& prediction) {
  const auto exposed = [&](const StepTimes& s) {
    return s.end_ps - s.compute_end_ps - prediction.optimizer_ps;
  };
  return mean_over_steps(prediction, exposed) / kPsPerMs;
}

}  // namespace lockstep::sim::timing
