// SPDX-License-Identifier: Apache-2.0
// Order, padding and dealing of samples.
#include "core/distributed_sampler.h"

#include <numeric>

#include "core/check.h"
#include "core/rng.h"

namespace lockstep {

DistributedSampler::DistributedSampler(const SamplerOptions& options) : options_(options) {
  LOCKSTEP_USAGE(options.num_samples >= 0, "num_samples is {}, but must not be negative",
                 options.num_samples);
  LOCKSTEP_USAGE(options.world_size >= 1, "world_size is {}, but must be at least 1",
                 options.world_size);
  LOCKSTEP_USAGE(options.rank >= 0 && options.rank < options.world_size,
                 "rank is {}, but must be in 0 .. {}", options.rank, options.world_size - 1);
  const std::int64_t rounded_down = options.num_samples / options.world_size;
  const bool uneven = options.num_samples % options.world_size != 0;
  samples_per_rank_ = rounded_down + (uneven && !options.drop_last ? 1 : 0);
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  LOCKSTEP_USAGE(epoch >= 0, "epoch is {}, but must not be negative", epoch);
  epoch_ = epoch;
}

std::vector<std::int64_t> DistributedSampler::global_order() const {
  std::vector<std::int64_t> order;
  if (options_.shuffle) {
    order =
        CounterRng(options_.seed, RngStream::kShuffle, 0, epoch_).permutation(options_.num_samples);
  } else {
    order.resize(static_cast<std::size_t>(options_.num_samples));
    std::iota(order.begin(), order.end(), std::int64_t{0});
  }
  const auto total = static_cast<std::size_t>(total_samples());
  order.reserve(total);
  for (std::size_t position = 0; order.size() < total; ++position) {
    order.push_back(order[position]);
  }
  order.resize(total);
  return order;
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  const std::vector<std::int64_t> order = global_order();
  std::vector<std::int64_t> mine;
  mine.reserve(static_cast<std::size_t>(samples_per_rank_));
  for (auto position = static_cast<std::size_t>(options_.rank); position < order.size();
       position += static_cast<std::size_t>(options_.world_size)) {
    mine.push_back(order[position]);
  }
  return mine;
}

}  // namespace lockstep
