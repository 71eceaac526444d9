// SPDX-License-Identifier: Apache-2.0
// Whether the processes of a [launch] meet, by the rules of rendezvous alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness::fuzz {

/// How a meeting ends. `error`: its kind (core/launch_error.h); empty: all processes meet.
struct Meeting {
  enum class Failing {
    kAll,   ///< every process
    kSome,  ///< those of `processes`; the others meet
    kLate,  ///< those who come second, which is a matter of the schedule
  };
  std::string error;
  Failing failing = Failing::kAll;
  std::vector<std::int64_t> processes;  ///< places in launch.processes, ascending
};

/// Nothing where several things are wrong at once, or something is asked for that is not followed
/// here: several stores, one that is removed, ports, addresses in the place of interfaces.
/// Precondition: check_case finds nothing.
std::optional<Meeting> meeting_of(const Case& value);

/// Whether it is known that all meet, or nobody has to.
bool all_meet(const Case& value);

}  // namespace lockstep::harness::fuzz
