// SPDX-License-Identifier: Apache-2.0
// Which samples of a data set a rank sees in an epoch.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

struct SamplerOptions {
  std::int64_t num_samples = 0;  ///< of the whole data set; >= 0
  std::int64_t world_size = 1;   ///< >= 1
  std::int64_t rank = 0;         ///< 0 .. world_size-1
  bool shuffle = true;           ///< a new order each epoch, the same on all ranks
  std::uint64_t seed = 0;        ///< must be the same on all ranks
  bool drop_last = false;        ///< drop the tail instead of repeating samples from the start
};

/// Deals one shared order of all samples to the ranks like cards: rank r gets positions r, r + W,
/// r + 2W, ...
///
/// All ranks get equally many samples. Where num_samples is no multiple of W, either the first
/// samples of the order are repeated at its end (as often as needed, also for num_samples < W), or,
/// with `drop_last`, the tail is left out. Without padding or dropping every sample is seen exactly
/// once per epoch. The order depends on (seed, epoch) alone and is the same on every machine.
/// Errors: UsageError for options out of range.
class DistributedSampler {
 public:
  explicit DistributedSampler(const SamplerOptions& options);

  /// Call before each epoch; without it every epoch has the same order. Starts at 0.
  /// Errors: UsageError for epoch < 0.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const { return epoch_; }

  /// Samples per rank and epoch.
  std::int64_t samples_per_rank() const { return samples_per_rank_; }
  /// Samples of all ranks and one epoch, padding included: W * samples_per_rank().
  std::int64_t total_samples() const { return samples_per_rank_ * options_.world_size; }

  /// This rank's sample indices of the epoch, in order. Shape: [samples_per_rank()].
  std::vector<std::int64_t> indices() const;
  /// The order that is dealt out, padding included. Shape: [total_samples()].
  std::vector<std::int64_t> global_order() const;

 private:
  SamplerOptions options_;
  std::int64_t samples_per_rank_ = 0;
  std::int64_t epoch_ = 0;
};

}  // namespace lockstep
