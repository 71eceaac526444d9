// SPDX-License-Identifier: Apache-2.0
// The subjects without hooks: `per_parameter`, `flat` and `none`.
#pragma once

#include <memory>

#include "harness/sync/gradient_sync.h"

namespace lockstep::harness {

/// `per_parameter`: one all_reduce per trainable parameter after backward, then the division.
/// `flat`: one all_reduce of all of them per dtype, then the division.
/// `none`: a barrier and no reduction.
/// All three broadcast parameters and buffers of rank 0 at construction, and buffers before a
/// synchronised forward if the case says so; a parameter without gradient counts as zeros.
std::unique_ptr<GradientSync> make_plain_sync(const SyncParts& parts);

}  // namespace lockstep::harness
