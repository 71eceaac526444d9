// SPDX-License-Identifier: Apache-2.0
// The one suite that every Communicator has to pass; a transport joins by instantiating it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <tuple>

#include "core/communicator.h"

namespace lockstep::test {

/// How to get ranks of one transport. In a file of the transport's own:
///
///   INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorContract, contract_params({"name", run}),
///                            contract_name);
struct CommunicatorFactory {
  std::string name;
  /// Runs `body` once for each of `world_size` ranks, in one process, in any interleaving, and
  /// returns when all have ended; rethrows what a body throws (the lowest rank's), and throws where
  /// ranks cannot end.
  std::function<void(std::int64_t world_size, const std::function<void(Communicator&)>& body)> run;
  /// Why so many ranks cannot run here, empty if they can; null: they always can.
  std::function<std::string(std::int64_t world_size)> why_not = nullptr;
};

inline void PrintTo(const CommunicatorFactory& factory, std::ostream* out) { *out << factory.name; }

using ContractParam = std::tuple<CommunicatorFactory, std::int64_t>;

/// Parameters: the transport, and the number of ranks.
class CommunicatorContract : public ::testing::TestWithParam<ContractParam> {
 protected:
  void SetUp() override {
    const auto& why_not = std::get<0>(GetParam()).why_not;
    const std::string reason = why_not ? why_not(world_size()) : "";
    if (!reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
  std::int64_t world_size() const { return std::get<1>(GetParam()); }
  void run(const std::function<void(Communicator&)>& body) const {
    std::get<0>(GetParam()).run(world_size(), body);
  }
};

/// All world sizes that the suite runs with.
inline auto contract_params(const CommunicatorFactory& factory) {
  return ::testing::Combine(::testing::Values(factory),
                            ::testing::Values<std::int64_t>(1, 2, 3, 4, 8));
}

inline std::string contract_name(const ::testing::TestParamInfo<ContractParam>& info) {
  return std::get<0>(info.param).name + std::to_string(std::get<1>(info.param)) + "Ranks";
}

}  // namespace lockstep::test
