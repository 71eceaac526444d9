// SPDX-License-Identifier: Apache-2.0
// Draws data sets.
#include "harness/dataset.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "core/rng.h"
#include "harness/block_spec.h"
#include "harness/exact_data.h"
#include "harness/model.h"

namespace lockstep::harness {
namespace {

constexpr double kNoise = 0.1;
constexpr double kRootOfThree = 1.7320508075688772;
constexpr std::int64_t kTeacherFanIn = 8;
// Half of the exact inputs and three quarters of the exact targets are zero.
constexpr std::int64_t kInputOutOf = 4;
constexpr std::int64_t kTargetOutOf = 8;
// Ranks of the stream: samples and teachers never share a draw.
constexpr std::int64_t kSampleDraws = 0;
constexpr std::int64_t kTeacherDraws = 1;

/// Uniform with mean 0 and variance 1: data needs no tails, and a normal costs many times as much.
double draw_real(CounterRng& rng) { return rng.uniform(-kRootOfThree, kRootOfThree); }

/// A sparse linear map of one sample's inputs to one head's outputs.
class Teacher {
 public:
  Teacher(std::uint64_t seed, std::int64_t head, const InputShape& input, std::int64_t outputs)
      : input_(input) {
    const std::int64_t inputs = numel_of(input.sizes);
    const std::int64_t fan_in = std::min(inputs, kTeacherFanIn);
    const double scale = 1.0 / std::sqrt(static_cast<double>(fan_in));
    CounterRng rng(seed, RngStream::kData, kTeacherDraws, head);
    for (std::int64_t output = 0; output < outputs; ++output) {
      std::vector<Term> terms;
      for (std::int64_t i = 0; i < fan_in; ++i) {
        const auto from =
            fan_in == inputs
                ? i
                : static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(inputs)));
        terms.push_back({from, scale * draw_real(rng)});
      }
      terms_.push_back(std::move(terms));
    }
  }

  double output(std::size_t index, const double* sample) const {
    double sum = 0.0;
    for (const Term& term : terms_[index]) {
      sum += term.weight * feature(sample[term.from]);
    }
    return sum;
  }

 private:
  struct Term {
    std::int64_t from;
    double weight;
  };

  /// Tokens count by their place in the vocabulary, spread over [-1, 1].
  double feature(double value) const {
    if (input_.kind != InputKind::kTokens) {
      return value;
    }
    return (2.0 * value + 1.0) / static_cast<double>(input_.vocabulary) - 1.0;
  }

  InputShape input_;
  std::vector<std::vector<Term>> terms_;
};

at::Tensor to_dtype(const at::Tensor& values, const std::string& dtype) {
  return values.to(dtype == "float64" ? at::kDouble : at::kFloat);
}

/// Numbers that the case gives in the place of drawn ones; `numel`: of one sample.
void give(const std::vector<double>& given, std::int64_t sample, std::int64_t numel, double* row) {
  const auto count = static_cast<std::int64_t>(given.size());
  for (std::int64_t i = 0; count > 0 && i < numel; ++i) {
    row[i] = given[static_cast<std::size_t>((sample * numel + i) % count)];
  }
}

Sizes batched(std::int64_t samples, const Sizes& sizes) {
  Sizes all = {samples};
  all.insert(all.end(), sizes.begin(), sizes.end());
  return all;
}

at::Tensor rows(const at::Tensor& table, const std::vector<std::int64_t>& samples) {
  Sizes sizes = table.sizes().vec();
  const std::int64_t num_samples = sizes[0];
  sizes[0] = static_cast<std::int64_t>(samples.size());
  at::Tensor result = at::empty(sizes, table.options());
  if (result.numel() == 0) {
    return result;
  }
  const std::size_t row_bytes = table.nbytes() / static_cast<std::size_t>(num_samples);
  const auto* const from = static_cast<const std::uint8_t*>(table.data_ptr());
  auto* to = static_cast<std::uint8_t*>(result.data_ptr());
  for (const std::int64_t sample : samples) {
    LOCKSTEP_USAGE(sample >= 0 && sample < num_samples, "there is no sample {}; there are {}",
                   sample, num_samples);
    std::memcpy(to, from + static_cast<std::size_t>(sample) * row_bytes, row_bytes);
    to += row_bytes;
  }
  return result;
}

}  // namespace

Dataset::Dataset(const Case& value) {
  const InputShape input = input_shape(value.model, value.data);
  const std::vector<Sizes> heads = output_shapes(value.model, value.data);
  const std::int64_t samples = value.data.samples;
  const bool classes = value.data.kind == "classification";
  const bool exact = value.data.exact;
  const std::int64_t inputs = numel_of(input.sizes);

  std::vector<Teacher> teachers;
  std::vector<at::Tensor> targets;
  for (std::size_t head = 0; head < heads.size(); ++head) {
    const std::int64_t outputs = numel_of(heads[head]);
    if (!exact) teachers.emplace_back(value.seed, static_cast<std::int64_t>(head), input, outputs);
    targets.push_back(torch::empty({samples, outputs}, torch::TensorOptions(torch::kDouble)));
  }
  at::Tensor table = torch::empty({samples, inputs}, torch::TensorOptions(torch::kDouble));
  const ExactScale scale = exact_scale(value, numel_of(heads[0]));
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    CounterRng rng(value.seed, RngStream::kData, kSampleDraws, sample);
    double* const row = table.data_ptr<double>() + sample * inputs;
    for (std::int64_t i = 0; i < inputs; ++i) {
      if (input.kind == InputKind::kTokens) {
        row[i] = static_cast<double>(rng.below(static_cast<std::uint64_t>(input.vocabulary)));
      } else {
        row[i] = exact ? scale.input * draw_exact_unit(rng, kInputOutOf) : draw_real(rng);
      }
    }
    give(value.data.inputs, sample, inputs, row);
    for (std::size_t head = 0; head < heads.size(); ++head) {
      const std::int64_t outputs = targets[head].size(1);
      double* const target = targets[head].data_ptr<double>() + sample * outputs;
      for (std::int64_t i = 0; i < outputs; ++i) {
        target[i] = exact ? scale.target * draw_exact_unit(rng, kTargetOutOf)
                          : teachers[head].output(static_cast<std::size_t>(i), row) +
                                kNoise * draw_real(rng);
      }
      give(value.data.targets, sample, outputs, target);
    }
  }
  table = table.view(batched(samples, input.sizes));
  inputs_ =
      input.kind == InputKind::kTokens ? table.to(at::kLong) : to_dtype(table, value.model.dtype);
  for (std::size_t head = 0; head < heads.size(); ++head) {
    const at::Tensor values = targets[head].view(batched(samples, heads[head]));
    targets_.push_back(classes ? values.argmax(-1) : to_dtype(values, value.model.dtype));
  }
}

at::Tensor Dataset::inputs(const std::vector<std::int64_t>& samples) const {
  return rows(inputs_, samples);
}

at::Tensor Dataset::targets(std::int64_t head, const std::vector<std::int64_t>& samples) const {
  LOCKSTEP_USAGE(head >= 0 && head < num_heads(), "there is no head {}; there are {}", head,
                 num_heads());
  return rows(targets_[static_cast<std::size_t>(head)], samples);
}

Dataset Dataset::to(const std::string& dtype) const {
  const auto convert = [&dtype](const at::Tensor& values) {
    return values.is_floating_point() ? to_dtype(values, dtype) : values;
  };
  Dataset result;
  result.inputs_ = convert(inputs_);
  for (const at::Tensor& target : targets_) {
    result.targets_.push_back(convert(target));
  }
  return result;
}

}  // namespace lockstep::harness
