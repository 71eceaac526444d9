// SPDX-License-Identifier: Apache-2.0
// Random numbers to factors.
#include "sim/timing/pace.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/rng.h"

namespace lockstep::sim::timing {

namespace {

constexpr double kTwo32 = 4294967296.0;
constexpr double kLeastFactor = 0.1;

/// Two words of CounterRng(seed, kTiming, rank, step).next(), at a third of its cost.
std::array<std::uint32_t, 2> words_of(std::uint64_t seed, std::uint32_t rank, std::uint32_t step) {
  const auto block =
      philox4x32({0, static_cast<std::uint32_t>(RngStream::kTiming) << 24, rank, step},
                 {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return {block[0], block[1]};
}

/// log(x) = e log 2 + 2 atanh((m - 1) / (m + 1)) with x = m 2^e and m within [1/sqrt 2, sqrt 2].
double natural_log(double x) {
  int exponent = 0;
  double m = std::frexp(x, &exponent);
  if (m < 0.70710678118654752) {
    m *= 2;
    --exponent;
  }
  const double s = (m - 1) / (m + 1);
  double sum = 0.0;
  for (int k = 23; k >= 1; k -= 2) sum = sum * s * s + 1.0 / k;
  return exponent * 0.69314718055994531 + 2 * s * sum;
}

template <std::size_t N>
double polynomial(const std::array<double, N>& coefficients, double x) {
  double sum = 0.0;
  for (const double c : coefficients) sum = sum * x + c;
  return sum;
}

/// Quantile of the normal distribution by Acklam's rational approximations, relative error 1e-9.
double normal_quantile(double p) {
  constexpr std::array<double, 6> kA = {-3.969683028665376e+01, 2.209460984245205e+02,
                                        -2.759285104469687e+02, 1.383577518672690e+02,
                                        -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr std::array<double, 6> kB = {-5.447609879822406e+01, 1.615858368580409e+02,
                                        -1.556989798598866e+02, 6.680131188771972e+01,
                                        -1.328068155288572e+01, 1.0};
  constexpr std::array<double, 6> kC = {-7.784894002430293e-03, -3.223964580411365e-01,
                                        -2.400758277161838e+00, -2.549732539343734e+00,
                                        4.374664141464968e+00,  2.938163982698783e+00};
  constexpr std::array<double, 5> kD = {7.784695709041462e-03, 3.224671290700398e-01,
                                        2.445134137142996e+00, 3.754408661907416e+00, 1.0};
  constexpr double kLowTail = 0.02425;
  if (p < kLowTail) {
    const double q = std::sqrt(-2 * natural_log(p));
    return polynomial(kC, q) / polynomial(kD, q);
  }
  if (p > 1 - kLowTail) return -normal_quantile(1 - p);
  const double q = p - 0.5;
  return polynomial(kA, q * q) * q / polynomial(kB, q * q);
}

}  // namespace

double standard_score(const std::string& distribution, std::uint32_t word) {
  const double p = (word + 0.5) / kTwo32;
  if (distribution == "uniform") return (2 * p - 1) * 1.7320508075688772;
  if (distribution == "exponential") return -natural_log(1 - p) - 1;
  return normal_quantile(p);
}

PaceModel::PaceModel(const Setup& setup)
    : seed_(static_cast<std::uint64_t>(setup.seed)),
      jitter_(setup.jitter),
      stragglers_(setup.stragglers),
      is_random_(jitter_.compute > 0 || jitter_.stall_probability > 0),
      stall_below_(static_cast<std::uint64_t>(jitter_.stall_probability * kTwo32)) {
  for (std::size_t table = 0; table < stragglers_.size(); ++table) {
    for (const std::int64_t rank : stragglers_[table].ranks) {
      tables_of_rank_[rank] |= std::uint32_t{1} << table;
    }
  }
}

Draw PaceModel::draw(std::int64_t rank, std::int64_t step) const {
  const auto words =
      words_of(seed_, static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(step));
  return {words[0], words[1] < stall_below_};
}

std::uint32_t PaceModel::stragglers_of(std::int64_t rank) const {
  const auto found = tables_of_rank_.find(rank);
  return found == tables_of_rank_.end() ? 0 : found->second;
}

double PaceModel::factor(std::uint32_t score, double deviation) const {
  if (deviation <= 0) return 1.0;
  return std::max(kLeastFactor, 1.0 + deviation * standard_score(jitter_.distribution, score));
}

Pace PaceModel::pace(Draw draw, std::uint32_t stragglers, std::int64_t step) const {
  Pace pace;
  pace.factor = factor(draw.score, jitter_.compute);
  double delay_ms = draw.stalled ? jitter_.stall_ms : 0.0;
  for (std::size_t table = 0; table < stragglers_.size(); ++table) {
    if ((stragglers >> table & 1U) == 0) continue;
    const StragglerSetup& straggler = stragglers_[table];
    const bool now =
        straggler.steps.empty() ||
        std::find(straggler.steps.begin(), straggler.steps.end(), step) != straggler.steps.end();
    if (!now) continue;
    pace.factor *= straggler.slowdown;
    delay_ms += straggler.delay_ms;
  }
  pace.delay_ps = rounded_ps(delay_ms * kPsPerMs);
  return pace;
}

Pace PaceModel::pace_of(std::int64_t rank, std::int64_t step) const {
  return pace(is_random_ ? draw(rank, step) : Draw{}, stragglers_of(rank), step);
}

double PaceModel::network_factor(std::int64_t step, std::int64_t index) const {
  if (jitter_.network <= 0) return 1.0;
  // Behind all ranks.
  constexpr std::uint32_t kFirst = std::uint32_t{1} << 31;
  const auto words =
      words_of(seed_, kFirst + static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(step));
  return factor(words[0], jitter_.network);
}

}  // namespace lockstep::sim::timing
