// SPDX-License-Identifier: Apache-2.0
// Which samples ranks see that shuffle, or take batches, otherwise than they should.
#include <algorithm>

#include "core/distributed_sampler.h"
#include "harness/fuzz/predict/predict_mistake.h"

namespace lockstep::harness::fuzz {

namespace {

using Batches = std::vector<std::vector<std::int64_t>>;

// As dealt: epoch after epoch, whole batches only.
Batches deal(const Case& value, std::int64_t rank, std::uint64_t more_seed, bool one_order) {
  SamplerOptions options;
  options.num_samples = value.data.samples;
  options.world_size = value.world.ranks;
  options.rank = rank;
  options.shuffle = value.data.shuffle;
  options.drop_last = value.data.drop_last;
  options.seed = value.seed + more_seed;
  DistributedSampler sampler(options);
  const auto batch = static_cast<std::size_t>(value.train.batch_per_rank);
  Batches batches;
  for (std::int64_t epoch = 0; static_cast<std::int64_t>(batches.size()) < value.train.steps;
       ++epoch) {
    sampler.set_epoch(one_order ? 0 : epoch);
    const std::vector<std::int64_t> indices = sampler.indices();
    for (std::size_t at = 0; at + batch <= indices.size(); at += batch) {
      batches.emplace_back(indices.begin() + static_cast<std::ptrdiff_t>(at),
                           indices.begin() + static_cast<std::ptrdiff_t>(at + batch));
    }
  }
  return batches;
}

enum class Difference { kNone, kOrder, kSamples };

// Losses are those of micro-batches, each a mean over its samples.
Difference difference(const Case& value, const std::vector<std::int64_t>& a,
                      const std::vector<std::int64_t>& b) {
  if (a == b) {
    return Difference::kNone;
  }
  const auto share = static_cast<std::ptrdiff_t>(a.size()) / value.train.micro_batches;
  for (std::ptrdiff_t micro = 0; micro < value.train.micro_batches; ++micro) {
    if (!std::is_permutation(a.begin() + micro * share, a.begin() + (micro + 1) * share,
                             b.begin() + micro * share)) {
      return Difference::kSamples;
    }
  }
  return Difference::kOrder;
}

}  // namespace

std::optional<FirstOther> first_other_batch(const Case& value, const FaultSpec& fault) {
  std::vector<Batches> meant, taken;
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    meant.push_back(deal(value, rank, 0, false));
    taken.push_back(meant.back());
    if (!covers(fault.ranks, rank)) {
      continue;
    }
    if (fault.kind == "shuffle_seed") {
      taken.back() = deal(value, rank, static_cast<std::uint64_t>(rank) + 1, false);
    } else if (fault.kind == "epoch_not_set") {
      taken.back() = deal(value, rank, 0, true);
    } else if (fault.kind == "same_batches") {
      taken.back() = deal(value, 0, 0, false);
    } else if (fault.kind == "mixed_steps") {
      for (std::int64_t step = 1; step < value.train.steps; ++step) {
        const auto at = static_cast<std::size_t>(step);
        taken.back()[at] = meant.back()[covers(fault.steps, step) ? at - 1 : at];
      }
    }
  }
  for (std::int64_t step = 0; step < value.train.steps; ++step) {
    const auto at = static_cast<std::size_t>(step);
    for (std::size_t rank = 0; rank < meant.size(); ++rank) {
      const Difference how = difference(value, meant[rank][at], taken[rank][at]);
      if (how == Difference::kOrder) {
        return std::nullopt;  // rounded otherwise, or not
      }
      if (how == Difference::kSamples) {
        return FirstOther{step, static_cast<std::int64_t>(rank)};
      }
    }
  }
  return std::nullopt;
}

}  // namespace lockstep::harness::fuzz
