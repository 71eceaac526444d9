// SPDX-License-Identifier: Apache-2.0
// The Gloo communicator under the common contract.
#include <gtest/gtest.h>

#include "tests/contract/communicator_contract.h"
#include "tests/contract/gloo_world.h"

namespace lockstep::test {
namespace {

CommunicatorFactory over_gloo() {
  return {"Gloo", [](std::int64_t world_size, const std::function<void(Communicator&)>& body) {
            GlooWorld world(world_size);
            world.run([&](GlooCommunicator& communicator) { body(communicator); });
          }};
}

INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorContract, contract_params(over_gloo()), contract_name);

}  // namespace
}  // namespace lockstep::test
