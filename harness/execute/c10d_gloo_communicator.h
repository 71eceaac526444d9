// SPDX-License-Identifier: Apache-2.0
// A communicator on PyTorch's own c10d::ProcessGroupGloo.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "core/communicator.h"

namespace lockstep::harness {

struct C10dGlooOptions {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::string directory;  ///< where the ranks of one group meet, and nobody else
  std::chrono::milliseconds timeout{60'000};
  std::chrono::milliseconds connect_timeout{30'000};
};

/// Collectives as PyTorch's Gloo backend carries them out, on its threads. Blocks until all ranks
/// have met.
///
/// Nobody compares what ranks issue: a wrong pairing mixes data, hangs or fails, as it does there.
/// Threads: as Communicator says; `Work::wait` may also be ended by destroying the communicator.
/// Errors:  PeerLost where the ranks do not meet. Out of `Work::wait`: TimedOut, PeerLost for any
///          other error of Gloo's, CommError if the communicator was destroyed.
/// End:     a group with a collective in flight cannot be destroyed, for its destructor waits for
///          its threads; it is left to its time limit and never freed.
std::unique_ptr<Communicator> make_c10d_gloo_communicator(const C10dGlooOptions& options);

}  // namespace lockstep::harness
