// SPDX-License-Identifier: Apache-2.0
// The derived bound: how far reordered serial runs are from the float64 one.
#include "harness/reference/derived_bound.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

#include "harness/reference/reference.h"
#include "harness/snapshot.h"

namespace lockstep::harness {
namespace {

const StepRecord* step_of(const Run& run, std::int64_t step) {
  for (const StepRecord& record : run.ranks.front().steps) {
    if (record.step == step) {
      return &record;
    }
  }
  return nullptr;
}

const Snapshot& part_of(const StepRecord& record, const std::string& phase) {
  return phase == "gradient" ? record.gradients : record.parameters;
}

at::Tensor read(const Snapshot& snapshot, std::size_t slot) {
  const at::Tensor tensor = tensor_of(snapshot, (*snapshot.slots)[slot]);
  return tensor.defined() ? tensor.to(at::kDouble).reshape({-1}) : tensor;
}

double ulp_at(double magnitude, const std::string& dtype) {
  const double epsilon = dtype == "Double" ? std::numeric_limits<double>::epsilon()
                                           : std::numeric_limits<float>::epsilon();
  return magnitude * epsilon;
}

}  // namespace

DerivedBound::DerivedBound(const Program& serial)
    : exact_(run_serial(serial, {"float64", 0, 1})),
      plain_(run_serial(serial, {serial.value.model.dtype, 0, 1})) {
  const std::int64_t shards = serial.value.world.ranks * serial.value.train.micro_batches;
  for (int i = 0; i < kVariants; ++i) {
    // Half of them accumulate over as many pieces as the ranks do.
    variants_.push_back(run_serial(
        serial,
        {serial.value.model.dtype, serial.value.seed * 1000 + 1 + i, i % 2 == 0 ? shards : 1}));
  }
}

std::optional<DerivedBound::Worst> DerivedBound::hold_against(const Snapshot& actual,
                                                              std::int64_t step,
                                                              const std::string& phase) const {
  const StepRecord* exact = step_of(exact_, step);
  if (exact == nullptr) {
    return std::nullopt;
  }
  Worst worst;
  double worst_ratio = -1.0;
  const Snapshot& reference = part_of(*exact, phase);
  for (std::size_t slot = 0; slot < reference.slots->size(); ++slot) {
    const at::Tensor x64 = read(reference, slot);
    const at::Tensor x = read(actual, slot);
    const std::string& name = (*reference.slots)[slot].name;
    if (x64.defined() != x.defined()) {
      worst = {{std::numeric_limits<double>::infinity(), 0.0, step, name}, name, -1, 0, 0, true};
      return worst;
    }
    if (!x64.defined() || x64.numel() == 0) {
      continue;
    }
    at::Tensor squares = at::zeros_like(x64);
    for (const Run& variant : variants_) {
      const at::Tensor other = read(part_of(*step_of(variant, step), phase), slot);
      squares += (other.defined() ? other - x64 : at::zeros_like(x64)).square();
    }
    const double sigma = (squares / kVariants).sqrt().max().item<double>();
    const double largest = x64.abs().max().item<double>();
    const double bound =
        sigma * std::sqrt(2.0 * std::log(2.0 * static_cast<double>(x64.numel()) / kFalseAlarm)) +
        ulp_at(largest, (*actual.slots)[slot].dtype);
    const at::Tensor error = (x - x64).abs();
    const std::int64_t element = error.argmax().item<std::int64_t>();
    const double observed = error[element].item<double>();
    // A tensor that is zero throughout has the bound 0 and allows nothing else.
    const double ratio = observed == 0.0 ? 0.0 : observed / bound;
    if (!(ratio <= worst_ratio)) {
      worst_ratio = ratio;
      worst = {{observed, bound, step, name}, name,           element, x64[element].item<double>(),
               x[element].item<double>(),     !(ratio <= 1.0)};
    }
  }
  return worst_ratio < 0.0 ? std::nullopt : std::optional<Worst>(worst);
}

}  // namespace lockstep::harness
