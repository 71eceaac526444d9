// SPDX-License-Identifier: Apache-2.0
// Changes that would cure a case which stood still or failed, proven by running it again.
#pragma once

#include <optional>

#include "harness/executor.h"
#include "harness/outcome.h"

namespace lockstep::harness {

/// Tries, on the same schedule, in this order:
///   find_unused_parameters   switch the option on
///   broadcast_buffers_off    leave buffers alone in forward
///   join                     let ranks without inputs shadow the others, where inputs are uneven
///   all_ranks                let all ranks do what the scripted disturbances do on some
/// and returns the first after which every rank finishes and the ranks agree with each other and
/// with the replay reference, bit for bit.
std::optional<Cure> find_cure(const Case& value, Executor& simulator);

}  // namespace lockstep::harness
