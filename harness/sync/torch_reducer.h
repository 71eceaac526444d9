// SPDX-License-Identifier: Apache-2.0
// PyTorch's own reducer, with what a watcher wants to know of its state; and the one place for the
// differences between the reducers of LibTorch's versions, whose headers core does without.
#pragma once

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/ddp_engine.h"
#include "core/libtorch_version.h"

namespace lockstep::harness {

/// What a reducer is made of, as its constructor names them.
struct TorchReducerParts {
  std::vector<at::Tensor> parameters;
  std::vector<std::vector<std::size_t>> bucket_indices;
  std::vector<std::size_t> per_bucket_size_limits;  ///< one per bucket
  std::vector<bool> expect_sparse;                  ///< one per parameter
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::unordered_map<std::size_t, std::string> names;
  std::int64_t bucket_bytes_cap = 0;
  std::int64_t first_bucket_bytes_cap = 0;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
};

/// `c10d::Reducer` as it is; nothing is changed, some of its protected state can be read.
/// Threads: the rank's own thread, outside the reducer's calls or inside its launches.
class TorchReducer final : public c10d::Reducer {
 public:
  // From 2.14 on the limits of the first buckets are left out; new are
  // skip_all_reduce_unused_params and use_python_reducer, both off as in DDP, and a list of caps,
  // empty where there is but one.
  explicit TorchReducer(TorchReducerParts parts)
      : c10d::Reducer(std::move(parts.parameters), std::move(parts.bucket_indices),
#if TORCH_VERSION_MAJOR < 2 || TORCH_VERSION_MINOR < 14
                      std::move(parts.per_bucket_size_limits),
#endif
                      std::move(parts.group), std::move(parts.expect_sparse),
                      parts.bucket_bytes_cap, parts.find_unused_parameters,
                      parts.gradient_as_bucket_view, parts.names, parts.first_bucket_bytes_cap
#if TORCH_VERSION_MAJOR >= 2 && TORCH_VERSION_MINOR >= 14
                      ,
                      false, false, {}
#endif
        ) {
  }

  bool armed() const { return expect_autograd_hooks_; }

  /// Whether a hook that runs now, or the backward in progress, belongs to a static graph's first
  /// iteration (L8): that of the first synchronised forward; from 2.1 on of the first backward,
  /// which the reducer counts in its first hook.
  bool is_static_first() const {
#if TORCH_VERSION_MAJOR == 1
    return static_graph_ && num_iterations_ == 1;
#else
    return static_graph_ && num_bwd_calls_ == (first_autograd_hook_called_ ? 1 : 0);
#endif
  }

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
