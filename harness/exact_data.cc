// SPDX-License-Identifier: Apache-2.0
// Chooses the scale of exact data so that an update is of the size of the weights.
#include "harness/exact_data.h"

#include <cmath>

#include "core/rng.h"

namespace lockstep::harness {
namespace {

// Errors are squared on their way into weights, so that a little less than the weights' own size
// lasts longest.
constexpr int kMseHeadroomBits = 2;

}  // namespace

double draw_exact_unit(CounterRng& rng, std::int64_t out_of) {
  const std::uint64_t drawn = rng.below(static_cast<std::uint64_t>(out_of));
  return drawn == 0 ? -1.0 : drawn == 1 ? 1.0 : 0.0;
}

ExactScale exact_scale(const Case& value, std::int64_t output_numel) {
  const TrainSpec& train = value.train;
  const auto ranks = static_cast<double>(value.world.ranks);
  // What one sample's gradient, in units of error times activation, moves a weight by.
  double move = train.optimizer.lr;
  if (train.reduction == "mean") {
    move /= ranks * static_cast<double>(train.batch_per_rank);
  } else if (!train.scale_loss_by_world_size) {
    move /= ranks;
  }
  if (train.loss == "mse") {
    move *= 2.0;
    move /= train.reduction == "mean" ? static_cast<double>(output_numel) : 1.0;
  }
  const int shift = move > 0.0 ? -static_cast<int>(std::floor(std::log2(move))) : 0;
  if (train.loss == "dot") {
    return {1.0, std::ldexp(1.0, shift)};
  }
  const double unit =
      std::ldexp(1.0, static_cast<int>(std::floor((shift - kMseHeadroomBits) / 2.0)));
  return {unit, unit};
}

}  // namespace lockstep::harness
