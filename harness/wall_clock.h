// SPDX-License-Identifier: Apache-2.0
// Real time, for rates and time limits. Nothing that decides a result may read it.
#pragma once

namespace lockstep::harness {

/// Seconds since some fixed moment; never goes back.
double wall_seconds();

}  // namespace lockstep::harness
