// SPDX-License-Identifier: Apache-2.0
// Gathers a description of the parameters of every rank and compares them with rank 0's.
#include "core/parameter_check.h"

#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>

#include "core/check.h"
#include "core/gather_words.h"

namespace lockstep {
namespace {

// What is compared of one parameter: dtype, number of dimensions, sizes, strides.
struct Description {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;

  bool operator==(const Description& other) const {
    return dtype == other.dtype && sizes == other.sizes && strides == other.strides;
  }
};

std::vector<std::int64_t> encode(const std::vector<at::Tensor>& parameters) {
  std::vector<std::int64_t> words;
  for (const at::Tensor& parameter : parameters) {
    words.push_back(static_cast<std::int64_t>(parameter.scalar_type()));
    words.push_back(parameter.dim());
    words.insert(words.end(), parameter.sizes().begin(), parameter.sizes().end());
    words.insert(words.end(), parameter.strides().begin(), parameter.strides().end());
  }
  return words;
}

std::vector<Description> decode(const std::int64_t* words, std::int64_t num_parameters) {
  std::vector<Description> descriptions(static_cast<std::size_t>(num_parameters));
  for (Description& description : descriptions) {
    description.dtype = static_cast<at::ScalarType>(*words++);
    const std::int64_t num_dimensions = *words++;
    description.sizes.assign(words, words + num_dimensions);
    words += num_dimensions;
    description.strides.assign(words, words + num_dimensions);
    words += num_dimensions;
  }
  return descriptions;
}

std::string to_text(const Description& description) {
  return fmt::format("{} sizes [{}] strides [{}]", c10::toString(description.dtype),
                     fmt::join(description.sizes, ", "), fmt::join(description.strides, ", "));
}

}  // namespace

void verify_parameters(Communicator& communicator, const std::vector<at::Tensor>& parameters,
                       const std::vector<std::string>& names) {
  const at::NoGradGuard no_grad;
  const at::Device device = parameters.empty() ? at::kCPU : parameters.front().device();
  const auto num_parameters = static_cast<std::int64_t>(parameters.size());
  std::vector<std::int64_t> own = encode(parameters);
  const at::Tensor totals =
      gather_words(communicator, {num_parameters, static_cast<std::int64_t>(own.size())}, device,
                   {CallSite::kParamCount, -1, -1});
  const auto* total = totals.data_ptr<std::int64_t>();
  std::int64_t words_max = 0;
  for (std::int64_t rank = 0; rank < communicator.world_size(); ++rank) {
    if (total[2 * rank] != total[0]) {
      throw DdpError("model_mismatch",
                     fmt::format("all ranks must wrap the same model, but rank {} has {} trainable "
                                 "parameters where rank 0 has {}",
                                 rank, total[2 * rank], total[0]));
    }
    words_max = std::max(words_max, total[2 * rank + 1]);
  }
  own.resize(static_cast<std::size_t>(words_max), 0);
  const at::Tensor gathered =
      gather_words(communicator, own, device, {CallSite::kParamShapes, -1, -1});
  const auto* words = gathered.data_ptr<std::int64_t>();
  const std::vector<Description> reference = decode(words, num_parameters);
  for (std::int64_t rank = 1; rank < communicator.world_size(); ++rank) {
    if (std::equal(words, words + words_max, words + rank * words_max)) {
      continue;
    }
    const std::vector<Description> other = decode(words + rank * words_max, num_parameters);
    for (std::size_t i = 0; i < other.size(); ++i) {
      if (!(other[i] == reference[i])) {
        throw DdpError(
            "model_mismatch",
            fmt::format("all ranks must wrap the same model, but parameter {} (index {}) is {} on "
                        "rank {} and {} on rank 0",
                        names.at(i), i, to_text(other[i]), rank, to_text(reference[i])),
            {names.at(i)});
      }
    }
  }
}

}  // namespace lockstep
