// SPDX-License-Identifier: Apache-2.0
// Coalesced broadcasts.
#include "core/module_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "tests/support/run_ranks.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;

// Tensor i of rank r is filled with 10 r + i.
std::vector<at::Tensor> states_of(std::int64_t rank) {
  std::vector<at::Tensor> states = {at::zeros({2, 3}),
                                    at::zeros({4}, at::kLong),
                                    at::zeros({0, 5}),
                                    at::zeros({}),
                                    at::zeros({2, 4, 3, 3}).to(at::MemoryFormat::ChannelsLast),
                                    at::zeros({3, 8}).narrow(1, 2, 4)};
  for (std::size_t i = 0; i < states.size(); ++i) {
    states[i].fill_(static_cast<std::int64_t>(10 * rank) + static_cast<std::int64_t>(i));
  }
  return states;
}

TEST(ModuleStatesTest, EveryRankGetsTheRootsValuesInPlace) {
  for (const std::int64_t root : {0, 2}) {
    const auto equal = run_ranks(3, [&](LocalCommunicator& communicator) {
      std::vector<at::Tensor> states = states_of(communicator.rank());
      const std::vector<at::Tensor> expected = states_of(root);
      BroadcastOptions options;
      options.root = root;
      broadcast_coalesced(communicator, states, options);
      bool all = true;
      for (std::size_t i = 0; i < states.size(); ++i) {
        all = all && states[i].equal(expected[i]) && states[i].strides() == expected[i].strides();
      }
      return all;
    });
    EXPECT_THAT(equal, ElementsAre(true, true, true));
  }
}

TEST(ModuleStatesTest, OneBroadcastPerDtypeAndNoneForEmptyTensors) {
  const auto numels = run_ranks(1, [](LocalCommunicator& communicator) {
    broadcast_coalesced(communicator, states_of(0), {});
    std::vector<std::int64_t> sizes;
    for (const CollectiveRecord& record : communicator.log()) {
      sizes.push_back(record.numel);
    }
    broadcast_coalesced(communicator, {at::zeros({0})}, {});
    sizes.push_back(static_cast<std::int64_t>(communicator.log().size()));
    return sizes;
  });
  // Floats: 6 + 1 + 72 + 12; longs: 4; then no further collective.
  EXPECT_THAT(numels[0], ElementsAre(91, 4, 2));
}

TEST(ModuleStatesTest, TheCapSplitsTheBroadcast) {
  const auto results = run_ranks(2, [](LocalCommunicator& communicator) {
    std::vector<at::Tensor> states;
    for (std::int64_t i = 0; i < 7; ++i) {
      states.push_back(at::full({2}, static_cast<double>(communicator.rank() * 100 + i)));
    }
    BroadcastOptions options;
    options.cap_bytes = 16;  // two tensors of 8 bytes
    broadcast_coalesced(communicator, states, options);
    std::vector<std::int64_t> observed = {static_cast<std::int64_t>(communicator.log().size())};
    for (const at::Tensor& state : states) {
      observed.push_back(state[1].item<std::int64_t>());
    }
    return observed;
  });
  EXPECT_THAT(results[1], ElementsAre(4, 0, 1, 2, 3, 4, 5, 6));
}

TEST(ModuleStatesTest, EqualBytesDoNotBumpTheVersion) {
  const auto bumps = run_ranks(2, [](LocalCommunicator& communicator) {
    const std::vector<at::Tensor> states = {at::ones({3}),
                                            at::full({3}, static_cast<double>(communicator.rank())),
                                            at::full({3}, std::nan(""))};
    std::vector<std::int64_t> before;
    for (const at::Tensor& state : states) {
      before.push_back(state._version());
    }
    broadcast_coalesced(communicator, states, {});
    for (std::size_t i = 0; i < states.size(); ++i) {
      before[i] = states[i]._version() - before[i];
    }
    return before;
  });
  EXPECT_THAT(bumps[0], ElementsAre(0, 0, 0));
  EXPECT_THAT(bumps[1], ElementsAre(0, 1, 0));
}

}  // namespace
}  // namespace lockstep::test
