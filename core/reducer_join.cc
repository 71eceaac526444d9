// SPDX-License-Identifier: Apache-2.0
// The reducer on a rank without inputs.
#include <torch/types.h>

#include <numeric>

#include "core/check.h"
#include "core/reducer.h"
#include "core/sparse_all_reduce.h"

namespace lockstep {

void Reducer::reduce_zeros() {
  LOCKSTEP_CHECK(!owed_, "a reduction is under way");
  LOCKSTEP_USAGE(!counts_hooks(),
                 "a static graph must be recorded before a rank goes on without gradients");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> buffers;
  std::vector<PendingTensor> results;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    const auto first = static_cast<std::size_t>(bucket.slots.front().parameter);
    buffers.push_back(bucket.is_sparse ? no_sparse_rows(parameters_[first])
                                       : at::zeros_like(bucket.flat));
    results.push_back(launch(i, buffers.back()));
    tell(EventKind::kBucketLaunched, static_cast<std::int64_t>(i));
  }
  UsedMap nothing_used(static_cast<std::int64_t>(parameters_.size()), parameters_.front().device());
  if (finds_unused()) {
    nothing_used.launch(*communicator_, tag(CallSite::kUsedMap));
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    check_result(i, buffers[i], results[i].wait());
  }
  wait_installed();
  nothing_used.wait();
  if (may_rebuild() && ready_order_.empty()) {
    ready_order_.resize(parameters_.size());
    std::iota(ready_order_.begin(), ready_order_.end(), std::int64_t{0});
  }
  disarm();  // a forward of this rank that had no backward
}

}  // namespace lockstep
