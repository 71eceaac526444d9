// SPDX-License-Identifier: Apache-2.0
// Which samples a rank sees, worked out without the sampler.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "core/rng.h"
#include "harness/fuzz/properties/invariants.h"
#include "harness/fuzz/script_traits.h"
#include "harness/program.h"

namespace lockstep::harness::fuzz {
namespace {

bool dealt_samples_applies(const Case& value) {
  return is_plain(value) && !any_event(value, [](const AtSpec& at) {
           return at.samples.has_value() || at.micro_batches.has_value();
         });
}

/// One rank's samples of an epoch. Every `ranks`-th of the epoch's order is its own; what is left
/// when all have the same number is left out, or filled up from the front of the order.
std::vector<std::int64_t> dealt(const Case& value, std::int64_t rank, std::int64_t epoch) {
  const std::int64_t ranks = value.world.ranks;
  const std::int64_t samples = value.data.samples;
  std::vector<std::int64_t> order(static_cast<std::size_t>(samples));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (value.data.shuffle) {
    order = CounterRng(value.seed, RngStream::kShuffle, 0, epoch).permutation(samples);
  }
  const std::int64_t each = value.data.drop_last ? samples / ranks : (samples + ranks - 1) / ranks;
  std::vector<std::int64_t> own;
  for (std::int64_t k = 0; k < each; ++k) {
    own.push_back(order[static_cast<std::size_t>((rank + k * ranks) % samples)]);
  }
  return own;
}

std::string dealt_samples_difference(const Case& value, const Run&, Executor&) {
  return sampling_difference(value, compile_subject(value));
}

}  // namespace

std::string sampling_difference(const Case& value, const Program& program) {
  const std::int64_t batch = value.train.batch_per_rank;
  for (const RankProgram& rank : program.ranks) {
    std::int64_t epoch = 0, taken = 0;
    std::vector<std::int64_t> own = dealt(value, rank.rank, epoch);
    for (const StepPlan& step : rank.steps) {
      if (taken + batch > static_cast<std::int64_t>(own.size())) {  // whole batches only
        own = dealt(value, rank.rank, ++epoch);
        taken = 0;
      }
      const std::vector<std::int64_t> expected(own.begin() + taken, own.begin() + taken + batch);
      taken += batch;
      std::vector<std::int64_t> actual;
      for (const MicroBatch& micro : step.micro_batches) {
        for (const Part& part : micro.parts) {
          std::copy(part.samples.begin(), part.samples.end(), std::back_inserter(actual));
        }
      }
      if (actual != expected) {
        return fmt::format("rank {}, step {}: trains on samples {}, where epoch {} deals {}",
                           rank.rank, step.step, actual, epoch, expected);
      }
    }
  }
  return "";
}

const Property& sampling_invariant() {
  static const Property kInvariant = {
      "dealt_samples",
      "every rank takes its turn in the epoch's order, which all ranks have in common",
      dealt_samples_applies, dealt_samples_difference};
  return kInvariant;
}

}  // namespace lockstep::harness::fuzz
