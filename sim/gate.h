// SPDX-License-Identifier: Apache-2.0
// What a rank's thread sleeps on while it is not its turn.
#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::sim {

/// A gate for one waiting thread. One `open` lets one `pass` through, in whichever order they come;
/// what was written before `open` is seen after `pass`.
class Gate {
 public:
  void open();
  /// Blocks until opened; closes the gate behind.
  void pass();

 private:
  enum State : std::uint32_t { kClosed, kOpen, kSleeper };
  std::atomic<std::uint32_t> state_{kClosed};
};

}  // namespace lockstep::sim
