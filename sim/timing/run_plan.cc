// SPDX-License-Identifier: Apache-2.0
// Plans of steps, and the figures that follow from them alone.
#include "sim/timing/run_plan.h"

#include <map>

namespace lockstep::sim::timing {

namespace {

std::shared_ptr<const PlannedStep> planned(const Setup& setup, bool first_step) {
  auto step = std::make_shared<PlannedStep>();
  step->plan = plan_step(setup, first_step);
  // Most buckets have the same size, and choosing an algorithm means trying them all.
  std::map<double, Collective> by_bytes;
  for (const Segment& segment : step->plan.segments) {
    std::vector<Collective>& collectives = step->collectives.emplace_back();
    for (const Launch& launch : segment.launches) {
      auto found = by_bytes.find(launch.wire_bytes);
      if (found == by_bytes.end()) {
        found =
            by_bytes.emplace(launch.wire_bytes, choose_collective(setup, launch.wire_bytes)).first;
      }
      collectives.push_back(found->second);
    }
  }
  return step;
}

Setup checked(const Setup& setup) {
  const std::vector<SetupFinding> findings = check_setup(setup);
  LOCKSTEP_USAGE(findings.empty(), "{}: {}", findings.front().keys.front(),
                 findings.front().message);
  return setup;
}

}  // namespace

CollectiveTimes untimed(const Segment& segment, const Launch& launch,
                        const Collective& collective) {
  CollectiveTimes times;
  times.micro_batch = segment.micro_batch;
  times.bucket = launch.bucket;
  times.num_parameters = launch.num_parameters;
  times.bytes = launch.bytes;
  times.algorithm = collective.algorithm();
  return times;
}

RunPlan::RunPlan(const Setup& setup)
    : setup_(checked(setup)),
      paces_(setup_),
      first_(planned(setup_, true)),
      later_(planned(setup_, false)) {}

std::shared_ptr<const PlannedStep> RunPlan::step(std::int64_t step) const {
  const std::shared_ptr<const PlannedStep>& usual = step == 0 ? first_ : later_;
  if (!paces_.network_is_random()) return usual;
  auto random = std::make_shared<PlannedStep>(*usual);
  std::int64_t index = 0;
  for (std::vector<Collective>& collectives : random->collectives) {
    for (Collective& collective : collectives) {
      collective = collective.slowed(paces_.network_factor(step, index++));
    }
  }
  return random;
}

Prediction RunPlan::begin_prediction() const {
  Prediction prediction;
  const std::int64_t last_step = setup_.train.steps - 1;
  for (std::int64_t step = 0; step <= last_step; ++step) {
    for (const Segment& segment : (step == 0 ? first_ : later_)->plan.segments) {
      prediction.num_collectives += static_cast<std::int64_t>(segment.launches.size());
    }
  }
  const auto last = step(last_step);
  prediction.optimizer_ps = last->plan.optimizer_ps;
  for (std::size_t i = 0; i < last->plan.segments.size(); ++i) {
    const Segment& segment = last->plan.segments[i];
    prediction.compute_ps += segment.compute_ps;
    for (std::size_t j = 0; j < segment.launches.size(); ++j) {
      const Collective& collective = last->collectives[i][j];
      prediction.communication_ps += segment.launches[j].overhead_ps + collective.duration_ps();
      prediction.wire_bytes += collective.wire_bytes();
    }
  }
  prediction.num_elements = num_elements(setup_);
  prediction.gradient_bytes = static_cast<double>(prediction.num_elements) *
                              static_cast<double>(setup_.compute.element_bytes);
  return prediction;
}

}  // namespace lockstep::sim::timing
