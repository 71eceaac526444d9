// SPDX-License-Identifier: Apache-2.0
// What a reducer is doing, readable from any thread while the reducer itself waits.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/ddp_engine.h"

namespace lockstep {

/// A copy of the reducer's bookkeeping that other threads may look at.
/// Threads: any. The lock is held for copying only, never while communication takes place.
class ReducerProgress {
 public:
  explicit ReducerProgress(std::int64_t num_parameters);

  void set_layout(std::shared_ptr<const BucketLayout> layout);
  /// A synchronised forward has taken place: nothing is ready, nothing is launched.
  void arm();
  void mark_ready(std::int64_t parameter);
  void launched(std::int64_t next_bucket);
  void finalized();

  ReducerState state() const;
  std::shared_ptr<const BucketLayout> layout() const;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const BucketLayout> layout_;
  std::vector<bool> ready_;
  std::int64_t next_bucket_ = 0;
  bool armed_ = false;
  bool unfinished_ = false;
};

}  // namespace lockstep
