// SPDX-License-Identifier: Apache-2.0
// Gloo ranks for tests: a thread each, on one device, meeting in a directory of their own.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/gloo_communicator.h"
#include "core/gloo_device.h"
#include "core/gloo_rendezvous.h"

namespace lockstep::test {

/// Runs `body(rank)` on `world_size` threads. Result: [world_size], what each threw, or null.
inline std::vector<std::exception_ptr> run_threads(std::int64_t world_size,
                                                   const std::function<void(std::int64_t)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&errors, &body, rank] {
      try {
        body(rank);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

/// Rethrows the first error, if any, on the calling thread.
inline void rethrow_any(const std::vector<std::exception_ptr>& errors) {
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

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

constexpr char kNoError[] = "no error";

/// What `action` throws as `E`, or a text that says what happened instead, maybe kNoError.
template <typename E, typename Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return kNoError;
}

}  // namespace lockstep::test
