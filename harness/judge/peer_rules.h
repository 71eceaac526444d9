// SPDX-License-Identifier: Apache-2.0
// Which kinds of cases PyTorch's reducer is known to treat otherwise.
#pragma once

#include <string>

#include "harness/case.h"
#include "harness/scenario.h"

namespace lockstep::harness {

/// Why PyTorch's reducer may do something else than our DDP in a case like this, in one line; empty
/// where it must do the same. For cases that nobody wrote an [expect.torch] for, such as random
/// ones: the two may agree in a case that is named here, but a difference in one that is not is
/// unexplained. Each reason has a scenario that shows it, most of them in scenarios/peer.
/// Precondition: check_case(value) finds nothing.
std::string why_peer_may_differ(const Case& value, LibTorchVersion version = kLibTorch);

}  // namespace lockstep::harness
