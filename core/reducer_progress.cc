// SPDX-License-Identifier: Apache-2.0
// A locked copy of the reducer's bookkeeping.
#include "core/reducer_progress.h"

#include <utility>

namespace lockstep {

ReducerProgress::ReducerProgress(std::int64_t num_parameters)
    : ready_(static_cast<std::size_t>(num_parameters), false) {}

void ReducerProgress::set_layout(std::shared_ptr<const BucketLayout> layout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  layout_ = std::move(layout);
}

void ReducerProgress::arm() {
  const std::lock_guard<std::mutex> lock(mutex_);
  armed_ = true;
  ready_.assign(ready_.size(), false);
  next_bucket_ = 0;
}

void ReducerProgress::mark_ready(std::int64_t parameter) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ready_[static_cast<std::size_t>(parameter)] = true;
  unfinished_ = true;
}

void ReducerProgress::launched(std::int64_t next_bucket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  next_bucket_ = next_bucket;
}

void ReducerProgress::finalized() {
  const std::lock_guard<std::mutex> lock(mutex_);
  armed_ = false;
  unfinished_ = false;
}

ReducerState ReducerProgress::state() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  ReducerState state;
  state.armed = armed_;
  state.unfinished = unfinished_;
  state.next_bucket = next_bucket_;
  state.num_buckets = layout_ ? static_cast<std::int64_t>(layout_->buckets.size()) : 0;
  if (armed_) {
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      if (!ready_[i]) {
        state.not_ready.push_back(static_cast<std::int64_t>(i));
      }
    }
  }
  return state;
}

std::shared_ptr<const BucketLayout> ReducerProgress::layout() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return layout_;
}

}  // namespace lockstep
