// SPDX-License-Identifier: Apache-2.0
// What another process has had of the processors, for limits that a busy machine does not shorten.
#pragma once

#include <sys/types.h>

namespace lockstep::harness {

/// Processor time that all its threads have used so far, the ended ones included, in seconds; 0
/// where the system does not tell. Its children are not counted. Threads: any.
double processor_seconds(pid_t process);

}  // namespace lockstep::harness
