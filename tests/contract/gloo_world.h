// SPDX-License-Identifier: Apache-2.0
// Gloo ranks for tests: a thread each, on one device, meeting in a directory of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/gloo_communicator.h"
#include "core/gloo_device.h"
#include "core/rendezvous.h"
#include "tests/contract/rank_threads.h"

namespace lockstep::test {

/// Connected ranks of one process; destroyed together.
class GlooWorld {
 public:
  explicit GlooWorld(std::int64_t world_size, GlooOptions options = {})
      : directory_(RendezvousDirectory::create()), ranks_(static_cast<std::size_t>(world_size)) {
    options.world_size = world_size;
    options.directory = directory_.path();
    options.token = directory_.token();
    if (!options.device) {
      options.device = GlooDevice::open();
    }
    rethrow_any(run_threads(world_size, [&](std::int64_t rank) {
      GlooOptions mine = options;
      mine.rank = rank;
      ranks_[static_cast<std::size_t>(rank)] = make_gloo_communicator(mine);
    }));
  }

  std::int64_t world_size() const { return static_cast<std::int64_t>(ranks_.size()); }
  GlooCommunicator& operator[](std::int64_t rank) {
    return *ranks_[static_cast<std::size_t>(rank)];
  }
  /// Destroys one rank's communicator.
  void leave(std::int64_t rank) { ranks_[static_cast<std::size_t>(rank)].reset(); }
  const std::string& path() const { return directory_.path(); }

  /// Runs `body(communicator)` once per rank, each on a thread; rethrows the first error.
  void run(const std::function<void(GlooCommunicator&)>& body) {
    rethrow_any(run_threads(world_size(), [&](std::int64_t rank) { body((*this)[rank]); }));
  }

 private:
  RendezvousDirectory directory_;
  std::vector<std::unique_ptr<GlooCommunicator>> ranks_;
};

}  // namespace lockstep::test
