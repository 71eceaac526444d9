// SPDX-License-Identifier: Apache-2.0
// Processor time of another process.
#include "harness/process_time.h"

#include <ctime>

namespace lockstep::harness {

double processor_seconds(pid_t process) {
  clockid_t clock{};
  timespec used{};
  if (clock_getcpuclockid(process, &clock) != 0 || clock_gettime(clock, &used) != 0) {
    return 0.0;
  }
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

}  // namespace lockstep::harness
