// SPDX-License-Identifier: Apache-2.0
// A gate over one futex word: one system call to wake, one to sleep, none where nobody sleeps.
#include "sim/gate.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep::sim {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
                  sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t),
              "the kernel waits on the atomic's own word");

void Gate::open() {
  if (state_.exchange(kOpen, std::memory_order_acq_rel) == kSleeper) {
    ::syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }
}

void Gate::pass() {
  std::uint32_t expected = kClosed;
  state_.compare_exchange_strong(expected, kSleeper, std::memory_order_acq_rel);
  while (state_.load(std::memory_order_acquire) != kOpen) {
    // Returns at once if the word has changed meanwhile; spurious returns are caught by the loop.
    ::syscall(SYS_futex, &state_, FUTEX_WAIT_PRIVATE, kSleeper, nullptr, nullptr, 0);
  }
  state_.store(kClosed, std::memory_order_relaxed);
}

}  // namespace lockstep::sim
