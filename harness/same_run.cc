// SPDX-License-Identifier: Apache-2.0
// Whether two runs of one program came to the same.
#include <algorithm>
#include <cstring>

#include "harness/run.h"
#include "harness/snapshot.h"

namespace lockstep::harness {
namespace {

bool same_losses(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

bool same_step(const StepRecord& a, const StepRecord& b) {
  return a.step == b.step && same_losses(a.losses, b.losses) &&
         same_bits(a.gradients, b.gradients) && same_bits(a.parameters, b.parameters) &&
         same_bits(a.buffers, b.buffers) && same_bits(a.optimizer, b.optimizer);
}

bool same_rank(const RankRun& a, const RankRun& b) {
  const auto seq = [](const RankRun& rank) { return rank.waiting ? rank.waiting->seq : -1; };
  return same_bits(a.final_parameters, b.final_parameters) &&
         same_bits(a.final_buffers, b.final_buffers) && a.ending == b.ending &&
         a.error_kind == b.error_kind && seq(a) == seq(b) &&
         std::equal(a.steps.begin(), a.steps.end(), b.steps.begin(), b.steps.end(), same_step);
}

}  // namespace

bool same_run(const Run& a, const Run& b) {
  return std::equal(a.ranks.begin(), a.ranks.end(), b.ranks.begin(), b.ranks.end(), same_rank);
}

}  // namespace lockstep::harness
