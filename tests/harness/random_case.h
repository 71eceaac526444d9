// SPDX-License-Identifier: Apache-2.0
// Cases for properties.
#pragma once

#include "harness/case.h"

namespace lockstep::test {

/// A script without mistakes: whatever it does, DDP must follow. Inside a RapidCheck property only.
harness::Case random_case();

}  // namespace lockstep::test
