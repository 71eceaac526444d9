// SPDX-License-Identifier: Apache-2.0
// The subject `ddp`: our DistributedDataParallel.
#pragma once

#include <memory>

#include "harness/sync/gradient_sync.h"

namespace lockstep::harness {

std::unique_ptr<GradientSync> make_ddp_sync(const SyncParts& parts);

}  // namespace lockstep::harness
