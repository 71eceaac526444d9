// SPDX-License-Identifier: Apache-2.0
// NCCL ranks for tests: a thread each, meeting in a directory of their own.
#pragma once

#include <functional>
#include <memory>

#include "core/nccl_communicator.h"
#include "core/rendezvous.h"
#include "tests/contract/rank_threads.h"

namespace lockstep::test {

/// Connects `world_size` ranks, runs `body` once for each on a thread of its own, and lets them go
/// together, for NCCL wants that. Rethrows the first error.
inline void run_nccl(std::int64_t world_size, NcclOptions options,
                     const std::function<void(NcclCommunicator&)>& body) {
  const RendezvousDirectory directory = RendezvousDirectory::create();
  options.world_size = world_size;
  options.directory = directory.path();
  options.token = directory.token();
  rethrow_any(run_threads(world_size, [&](std::int64_t rank) {
    NcclOptions mine = options;
    mine.rank = rank;
    const auto communicator = make_nccl_communicator(mine);
    body(*communicator);
  }));
}

}  // namespace lockstep::test
