// SPDX-License-Identifier: Apache-2.0
// What another process has had of the processors, for limits that a busy machine does not shorten.
#pragma once

#include <sys/types.h>

namespace lockstep::harness {

/// Processor time that all its threads have used so far, the ended ones included, in seconds; 0
/// where the system does not tell. Its children are not counted. Threads: any.
double processor_seconds(pid_t process);

/// Whether some thread of it runs, is ready to run, or waits for a disk; false where all of them
/// wait for something else, and where the system does not tell. Threads: any.
bool wants_processor(pid_t process);

}  // namespace lockstep::harness
