// SPDX-License-Identifier: Apache-2.0
// PyTorch's own reducer, with what a watcher wants to know of its state.
#pragma once

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <cstdint>
#include <vector>

#include "core/ddp_engine.h"

namespace lockstep::harness {

/// `c10d::Reducer` as it is; nothing is changed, some of its protected state can be read.
/// Threads: the rank's own thread, outside the reducer's calls or inside its launches.
class TorchReducer final : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;

  bool armed() const { return expect_autograd_hooks_; }
  bool is_static_first() const { return static_graph_ && num_iterations_ == 1; }
  std::size_t num_buckets() const { return buckets_.size(); }
  const std::vector<std::size_t>& unused() const { return unused_parameters_; }

  /// Whether the hook that is about to run makes `parameter` ready (L5); for armed backwards that
  /// are not the first of a static graph.
  bool completes(std::size_t parameter) const {
    const auto left = numGradHooksTriggeredMapPerIteration_.find(parameter);
    return !static_graph_ ||
           (left != numGradHooksTriggeredMapPerIteration_.end() && left->second == 1);
  }

  BucketLayout layout() const {
    BucketLayout layout;
    for (const Bucket& bucket : buckets_) {
      layout.buckets.emplace_back(bucket.variable_indices.begin(), bucket.variable_indices.end());
    }
    return layout;
  }
};

}  // namespace lockstep::harness
