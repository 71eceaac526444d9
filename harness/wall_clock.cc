// SPDX-License-Identifier: Apache-2.0
// Real time, for rates and time limits.
#include "harness/wall_clock.h"

#include <chrono>

namespace lockstep::harness {

double wall_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace lockstep::harness
