// SPDX-License-Identifier: Apache-2.0
// A search that goes on from the scripts that came farthest.
#include "harness/fuzz/campaign/steering.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/rng.h"

namespace lockstep::harness::fuzz {

namespace {

constexpr std::size_t kBestMax = 16;

double score_of(Toward toward, const CaseResult& result) {
  if (toward == Toward::kWait) return static_cast<double>(result.longest_wait_ns);
  const auto& worst = result.outcome.worst;
  return worst && worst->bound > 0 ? worst->observed / worst->bound : 0.0;
}

}  // namespace

std::string score_text(Toward toward, double score) {
  return toward == Toward::kWait ? fmt::format("{:.0f} ns", score)
                                 : fmt::format("{:.4f} of the bound", score);
}

void Steering::add(const std::string& name, const Case& value, const CaseResult& result) {
  const double score = score_of(toward_, result);
  if (score <= 0.0) return;
  // Behind those that are as good, so that an earlier one stays.
  const auto place = std::find_if(best_.begin(), best_.end(),
                                  [&](const Scored& other) { return other.score < score; });
  if (place == best_.end() && best_.size() == kBestMax) return;
  best_.insert(place, {score, value, name});
  if (best_.size() > kBestMax) best_.pop_back();
}

const Case* Steering::parent(std::uint64_t seed, std::uint64_t index) const {
  if (parents_.empty()) return nullptr;
  constexpr std::int64_t kStreamOfParents = 1;
  CounterRng rng(seed, RngStream::kFuzz, kStreamOfParents, static_cast<std::int64_t>(index));
  if (rng.bernoulli(0.5)) return nullptr;
  // The better ones more often.
  const std::size_t place = std::min(rng.below(parents_.size()), rng.below(parents_.size()));
  return &parents_[place].value;
}

}  // namespace lockstep::harness::fuzz
