// SPDX-License-Identifier: Apache-2.0
// Keeps signals away from the threads of the Gloo transport.
#pragma once

#include <signal.h>

namespace lockstep {

/// Blocks all signals but the synchronous faults on the calling thread while it lives. Threads that
/// are created meanwhile inherit the mask for good.
///
/// Gloo writes to sockets without MSG_NOSIGNAL, so a peer that is gone raises SIGPIPE on the thread
/// that writes. Blocked there, the write fails with EPIPE, which Gloo turns into an exception; the
/// process' own disposition of SIGPIPE is left alone.
class ScopedSignalBlock {
 public:
  ScopedSignalBlock() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
      sigdelset(&blocked, fault);
    }
    pthread_sigmask(SIG_BLOCK, &blocked, &previous_);
  }
  ~ScopedSignalBlock() {
    // A SIGPIPE that is still pending here came from a write of Gloo's; it must not be delivered
    // once the mask is lifted.
    if (sigismember(&previous_, SIGPIPE) == 0) {
      sigset_t pipe_only;
      sigemptyset(&pipe_only);
      sigaddset(&pipe_only, SIGPIPE);
      const timespec no_wait{};
      sigtimedwait(&pipe_only, nullptr, &no_wait);
    }
    pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
  }
  ScopedSignalBlock(const ScopedSignalBlock&) = delete;
  ScopedSignalBlock& operator=(const ScopedSignalBlock&) = delete;

 private:
  sigset_t previous_{};
};

}  // namespace lockstep
