// SPDX-License-Identifier: Apache-2.0
// The subject `torch`: PyTorch's own c10d::Reducer, with the Python layer around it re-created.
#pragma once

#include <memory>

#include "harness/sync/gradient_sync.h"

namespace lockstep::harness {

/// LibTorch's `c10d::Reducer` over the rank's communicator.
///
/// Construction and forward follow DDP's Python layer of the LibTorch version in use (A to E, J),
/// with one addition: where both bucket caps are given the smaller one bounds the first bucket, as
/// in our DDP, so that both make the same buckets (C14).
/// Errors: c10::Error as LibTorch throws it, see `libtorch_error_kind`; UsageError if no parameter
/// requires a gradient; what the communicator throws comes out of construction, forward and
/// backward.
std::unique_ptr<GradientSync> make_torch_sync(const SyncParts& parts);

}  // namespace lockstep::harness
