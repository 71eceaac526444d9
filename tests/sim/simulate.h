// SPDX-License-Identifier: Apache-2.0
// Short forms that the simulator's tests share.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "sim/world.h"

namespace lockstep::test {

inline sim::WorldOptions world_of(std::int64_t world_size) {
  sim::WorldOptions options;
  options.world_size = world_size;
  return options;
}

inline sim::ScheduleSpec schedule_of(sim::SchedulePolicy policy, std::uint64_t seed = 0) {
  sim::ScheduleSpec spec;
  spec.policy = policy;
  spec.seed = seed;
  return spec;
}

inline sim::WorldOptions random_world_of(std::int64_t world_size, std::uint64_t seed) {
  sim::WorldOptions options = world_of(world_size);
  options.schedule = schedule_of(sim::SchedulePolicy::kRandom, seed);
  return options;
}

inline sim::WorldResult simulate(std::int64_t world_size,
                                 const std::function<void(sim::RankContext&)>& body) {
  return sim::run_world(world_of(world_size), body);
}

inline CollectiveTag bucket_tag(std::int64_t step, std::int64_t bucket) {
  return {CallSite::kBucket, step, bucket};
}

inline void sum_and_wait(sim::RankContext& rank, const at::Tensor& tensor,
                         const CollectiveTag& tag = {}) {
  rank.communicator().all_reduce(tensor, ReduceOp::kSum, tag)->wait();
}

inline void barrier_and_wait(sim::RankContext& rank) {
  rank.communicator().barrier({CallSite::kBarrier, -1, -1})->wait();
}

/// The message of `error` if it is an `E`; "another type: ..." if not; "no error" if there is none.
template <typename E>
std::string message_of(const std::exception_ptr& error) {
  if (!error) {
    return "no error";
  }
  try {
    std::rethrow_exception(error);
  } catch (const E& exception) {
    return exception.what();
  } catch (const std::exception& exception) {
    return std::string("another type: ") + exception.what();
  }
}

}  // namespace lockstep::test
