// SPDX-License-Identifier: Apache-2.0
// The derived bound: how far reordered serial runs are from the float64 one.
#include "harness/reference/derived_bound.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "core/check.h"
#include "harness/reference/reference.h"

namespace lockstep::harness {
namespace {

const Snapshot& part_of(const StepRecord& record, const std::string& phase) {
  return phase == "gradient" ? record.gradients : record.parameters;
}

// One tensor's elements as doubles, read where they lie.
class Elements {
 public:
  Elements(const Snapshot& snapshot, std::size_t slot)
      : slot_((*snapshot.slots)[slot]),
        wide_(real_bytes(slot_) == 8),
        bytes_(snapshot.bytes.data() + slot_.offset_bytes),
        numel_(slot_.num_bytes / (wide_ ? 8 : 4)) {
    LOCKSTEP_CHECK(!slot_.defined || real_bytes(slot_) > 0, "{} is of dtype {}", slot_.name,
                   slot_.dtype);
  }

  bool defined() const { return slot_.defined; }
  std::int64_t numel() const { return numel_; }
  double operator[](std::int64_t i) const { return wide_ ? get<double>(i) : get<float>(i); }
  double ulp_at(double magnitude) const {
    return magnitude *
           (wide_ ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon());
  }

 private:
  template <typename T>
  T get(std::int64_t i) const {
    T value;
    std::memcpy(&value, bytes_ + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
  }

  const TensorSlot& slot_;  // outlives this: part of a run
  bool wide_;
  const std::uint8_t* bytes_;
  std::int64_t numel_;
};

double largest_of(const Elements& elements) {
  double largest = 0.0;
  for (std::int64_t i = 0; i < elements.numel(); ++i) {
    largest = std::max(largest, std::abs(elements[i]));
  }
  return largest;
}

bool zeros(const Elements& elements) { return !elements.defined() || largest_of(elements) == 0.0; }

// sigma of DerivedBound for one tensor in one step.
double sigma_of(const Elements& exact, const std::vector<Elements>& variants) {
  double worst_mean_square = 0.0;
  for (std::int64_t i = 0; i < exact.numel(); ++i) {
    double squares = 0.0;
    for (const Elements& variant : variants) {
      const double error = variant.defined() ? variant[i] - exact[i] : 0.0;
      squares += error * error;
    }
    if (!std::isfinite(squares)) {
      return std::numeric_limits<double>::infinity();  // a variant overflowed
    }
    worst_mean_square = std::max(worst_mean_square, squares / static_cast<double>(variants.size()));
  }
  return std::sqrt(worst_mean_square);
}

struct Bound {
  double value = 0.0;
  bool is_certain = false;  ///< of some digit of the tensor
};

// The equations of DerivedBound for one tensor.
Bound bound_of(const Elements& exact, const Elements& actual, double sigma, double largest_before) {
  const double largest = largest_of(exact);
  const double odds = static_cast<double>(exact.numel()) / DerivedBound::kFalseAlarm;
  const double normal = sigma * std::sqrt(2.0 * std::log(2.0 * odds));
  const bool is_certain = normal < largest;
  return {(is_certain ? normal : sigma * std::sqrt(odds)) +
              4.0 * actual.ulp_at(largest + largest_before),
          is_certain};
}

// A NaN that the reference does not have is an infinite error; one that it has is none.
double error_of(double actual, double exact) {
  if (std::isnan(actual) || std::isnan(exact)) {
    return std::isnan(actual) && std::isnan(exact) ? 0.0 : std::numeric_limits<double>::infinity();
  }
  return actual == exact ? 0.0 : std::abs(actual - exact);
}

// The largest error, and of which element.
std::pair<double, std::int64_t> farthest(const Elements& actual, const Elements& reference) {
  std::pair<double, std::int64_t> worst{-1.0, 0};
  for (std::int64_t i = 0; i < reference.numel(); ++i) {
    const double error = error_of(actual[i], reference[i]);
    if (error > worst.first) worst = {error, i};
  }
  return worst;
}

}  // namespace

DerivedBound::DerivedBound(Program serial)
    : serial_(std::move(serial)), exact_(run_serial(serial_, {"float64", 0, 1})) {
  draw_variants(kVariants);
}

std::int64_t DerivedBound::num_pieces() const {
  // Batch statistics are those of the whole batch: pieces of it would be another model.
  const Case& value = serial_.value;
  return uses_sync_batch_norm(value.model) ? 1 : value.world.ranks * value.train.micro_batches;
}

void DerivedBound::draw_variants(int count) const {
  const Case& value = serial_.value;
  strayed_.clear();
  for (int i = static_cast<int>(variants_.size()); i < count; ++i) {
    // One in four accumulates over as many pieces as the ranks do.
    variants_.push_back(run_serial(serial_, {value.model.dtype, value.seed * 1000 + 1 + i,
                                             i % kVariants == 0 ? num_pieces() : 1}));
  }
}

std::optional<DerivedBound::Worst> DerivedBound::hold_against(const Snapshot& actual,
                                                              std::int64_t step,
                                                              const std::string& phase,
                                                              bool undefined_is_zero) const {
  const StepRecord* exact = find_step(exact_.ranks.front(), step);
  if (exact == nullptr) {
    return std::nullopt;
  }
  Worst worst = worst_of(actual, step, phase, undefined_is_zero);
  if (worst.exceeded && !plain_) {
    plain_ = run_serial(serial_, {serial_.value.model.dtype, 0, num_pieces()});
    worst = worst_of(actual, step, phase, undefined_is_zero);
  }
  const bool is_gross =
      worst.is_certain && worst.distance.observed >= kGross * worst.distance.bound;
  if (worst.exceeded && !is_gross) {
    draw_variants(kVariantsMax);
    worst = worst_of(actual, step, phase, undefined_is_zero);
  }
  return worst.element < 0 && !worst.exceeded ? std::nullopt : std::optional<Worst>(worst);
}

double DerivedBound::sigma_in(std::int64_t step, const std::string& phase, std::size_t slot) const {
  const Elements exact(part_of(*find_step(exact_.ranks.front(), step), phase), slot);
  if (!exact.defined()) {
    return 0.0;
  }
  std::vector<Elements> variants;
  for (const Run& variant : variants_) {
    variants.emplace_back(part_of(*find_step(variant.ranks.front(), step), phase), slot);
  }
  return sigma_of(exact, variants);
}

double DerivedBound::sigma(std::int64_t step, const std::string& phase, std::size_t slot) const {
  if (phase != "parameter") {
    return sigma_in(step, phase, slot);
  }
  const std::vector<StepRecord>& steps = exact_.ranks.front().steps;
  const std::size_t num_slots = steps.front().parameters.slots->size();
  for (std::size_t at = strayed_.size(); at < steps.size() && steps[at].step <= step; ++at) {
    std::vector<double> strayed(num_slots, 0.0);
    for (std::size_t i = 0; i < num_slots; ++i) {
      strayed[i] = std::max(at > 0 ? strayed_[at - 1][i] : 0.0, sigma_in(steps[at].step, phase, i));
    }
    strayed_.push_back(std::move(strayed));
  }
  std::size_t at = 0;
  while (steps[at].step != step) {
    ++at;
  }
  return strayed_[at][slot];
}

// Precondition: the step is there. No tensor at all: `element` is negative.
DerivedBound::Worst DerivedBound::worst_of(const Snapshot& actual, std::int64_t step,
                                           const std::string& phase, bool undefined_is_zero) const {
  const StepRecord* exact = find_step(exact_.ranks.front(), step);
  const StepRecord* last = find_step(exact_.ranks.front(), step - 1);
  const Snapshot* earlier = last != nullptr ? &part_of(*last, phase) : nullptr;
  if (earlier == nullptr && phase == "parameter") {
    earlier = &exact_.ranks.front().initial_parameters;
  }
  Worst worst;
  double worst_ratio = -1.0;
  const Snapshot& reference = part_of(*exact, phase);
  for (std::size_t slot = 0; slot < reference.slots->size(); ++slot) {
    const Elements x64(reference, slot);
    const Elements x(actual, slot);
    const std::string& name = (*reference.slots)[slot].name;
    if (x64.defined() != x.defined() && !(undefined_is_zero && zeros(x64) && zeros(x))) {
      worst = {
          {std::numeric_limits<double>::infinity(), 0.0, step, name}, name, -1, 0, 0, true, true};
      return worst;
    }
    if (!x64.defined() || !x.defined() || x64.numel() == 0) {
      continue;
    }
    const double before = earlier != nullptr ? largest_of(Elements(*earlier, slot)) : 0.0;
    const auto [bound, is_certain] = bound_of(x64, x, sigma(step, phase, slot), before);
    auto [observed, element] = farthest(x, x64);
    if (plain_ && !(observed <= bound)) {
      const Elements plain(part_of(*find_step(plain_->ranks.front(), step), phase), slot);
      if (plain.defined()) {
        const auto from_plain = farthest(x, plain);
        if (from_plain.first <= bound) std::tie(observed, element) = from_plain;
      }
    }
    // A tensor that is zero throughout has the bound 0 and allows nothing else.
    const double ratio = observed == 0.0 ? 0.0 : observed / bound;
    // Where variants overflowed there is no bound to be within.
    const bool exceeded = !std::isfinite(bound) || !(observed <= bound);
    if (exceeded || ratio > worst_ratio) {
      worst_ratio = ratio;
      worst = {{observed, bound, step, name},
               name,
               element,
               x64[element],
               x[element],
               exceeded,
               is_certain};
    }
    if (worst.exceeded) {
      break;
    }
  }
  return worst;
}

}  // namespace lockstep::harness
