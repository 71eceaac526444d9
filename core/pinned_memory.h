// SPDX-License-Identifier: Apache-2.0
// Host memory that a GPU can reach, lent and taken back. Internal to the NCCL transport.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "core/nccl_api.h"

namespace lockstep {

/// Blocks of a power of two bytes. They are kept until the pool ends, because the driver may halt
/// the GPU to allocate and to free.
/// Threads: one at a time.
class PinnedMemory {
 public:
  explicit PinnedMemory(const NcclApi& api) : api_(api) {}
  ~PinnedMemory() { free_all(); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  /// Frees what is not lent.
  void free_all() {
    for (auto& [bytes, blocks] : free_) {
      for (void* block : blocks) {
        api_.free_pinned(block);
      }
    }
    free_.clear();
  }

  /// A block of at least `bytes`, not initialised; CUDA's error in `status` if there is none.
  void* lend(std::size_t bytes, int& status) {
    auto& blocks = free_[class_of(bytes)];
    if (!blocks.empty()) {
      void* const block = blocks.back();
      blocks.pop_back();
      status = kGpuSuccess;
      return block;
    }
    void* block = nullptr;
    status = api_.allocate_pinned(&block, class_of(bytes));
    return block;
  }
  void take_back(void* block, std::size_t bytes) { free_[class_of(bytes)].push_back(block); }

 private:
  static std::size_t class_of(std::size_t bytes) {
    std::size_t size = 512;
    while (size < bytes) {
      size *= 2;
    }
    return size;
  }

  const NcclApi& api_;  // outlives this
  std::map<std::size_t, std::vector<void*>> free_;
};

}  // namespace lockstep
