// SPDX-License-Identifier: Apache-2.0
// The simulator's communicator under the common contract, with each schedule policy.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <exception>
#include <functional>
#include <stdexcept>

#include "sim/wait_for_graph.h"
#include "sim/world.h"
#include "tests/contract/communicator_contract.h"
#include "tests/sim/simulate.h"

namespace lockstep::test {
namespace {

CommunicatorFactory simulated(const char* name, sim::ScheduleSpec schedule) {
  return {name,
          [schedule](std::int64_t world_size, const std::function<void(Communicator&)>& body) {
            sim::WorldOptions options;
            options.world_size = world_size;
            options.schedule = schedule;
            const sim::WorldResult result =
                sim::run_world(options, [&](sim::RankContext& rank) { body(rank.communicator()); });
            for (const sim::RankResult& rank : result.ranks) {
              if (rank.error) {
                std::rethrow_exception(rank.error);
              }
            }
            if (result.deadlock) {
              throw std::runtime_error("deadlock:\n" + sim::wait_for_text(result));
            }
          }};
}

INSTANTIATE_TEST_SUITE_P(
    SimRoundRobin, CommunicatorContract,
    contract_params(simulated("SimRoundRobin", schedule_of(sim::SchedulePolicy::kRoundRobin, 11))),
    contract_name);
INSTANTIATE_TEST_SUITE_P(SimRandom, CommunicatorContract,
                         contract_params(simulated("SimRandom",
                                                   schedule_of(sim::SchedulePolicy::kRandom, 11))),
                         contract_name);
INSTANTIATE_TEST_SUITE_P(SimPct, CommunicatorContract,
                         contract_params(simulated("SimPct",
                                                   schedule_of(sim::SchedulePolicy::kPct, 11))),
                         contract_name);

}  // namespace
}  // namespace lockstep::test
