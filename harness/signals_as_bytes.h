// SPDX-License-Identifier: Apache-2.0
// Signals that arrive where a loop waits for other things.
#pragma once

#include <array>
#include <csignal>

namespace lockstep::harness {

/// While it lives, SIGCHLD, SIGINT, SIGTERM and SIGHUP arrive as bytes on `fd()`. Handlers, not a
/// blocked mask: LibTorch's libraries may run threads of their own, to which a signal that this
/// thread blocks would be delivered, with its usual effect. What the caller ignores stays ignored.
class SignalsAsBytes {
 public:
  /// Errors: Error if there is no pipe to be had.
  SignalsAsBytes();
  ~SignalsAsBytes();
  SignalsAsBytes(const SignalsAsBytes&) = delete;
  SignalsAsBytes& operator=(const SignalsAsBytes&) = delete;

  int fd() const { return fds_[0]; }

  /// Takes all that have come; the first that asks to end, or 0.
  int take();

 private:
  std::array<int, 2> fds_ = {-1, -1};
  int old_pipe_ = -1;
  std::array<struct sigaction, 4> old_actions_{};
};

}  // namespace lockstep::harness
