// SPDX-License-Identifier: Apache-2.0
// Random scripts under our DDP and PyTorch's: the same bits, collectives and ends.
#include <gtest/gtest.h>
// rapidcheck/gtest.h uses GoogleTest's names and must come after it.
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "harness/judge/peer_comparison.h"
#include "harness/program.h"
#include "harness/scenario.h"
#include "tests/harness/random_case.h"

namespace lockstep::harness {
namespace {

// Where this LibTorch is known to do something else; see scenarios/peer.
bool is_known_to_differ(const Case& value) {
  const bool has_windows = value.train.micro_batches > 1 && value.train.sync_on == "last";
  const bool has_routes = std::any_of(value.at.begin(), value.at.end(),
                                      [](const AtSpec& at) { return at.is_routing(); });
  const bool two_dtypes = std::any_of(
      value.model.blocks.begin(), value.model.blocks.end(),
      [](const auto& block) { return block.second.find(" float64") != std::string::npos; });
  const bool several_forwards = value.train.forwards_per_backward > 1;
  // A joined rank sends its last used map again.
  return (value.ddp.join != "off" && value.ddp.find_unused_parameters && has_routes) ||
         (value.ddp.static_graph && (has_windows || several_forwards)) ||
         (has_windows && value.ddp.find_unused_parameters && has_routes) ||
         (two_dtypes && !value.ddp.find_unused_parameters);
}

TEST(TorchSyncProps, DoesWhatOursDoes) {
  const auto simulator = make_sim_executor();
  const bool holds = rc::check("PyTorch's reducer does what ours does", [&] {
    const Case value = test::random_case();
    RC_PRE(!is_known_to_differ(value));
    const PeerComparison comparison =
        compare_with_torch(value, simulator->execute(compile_subject(value)), *simulator);
    for (const std::string& difference : comparison.differences) {
      RC_LOG() << difference << "\n";
    }
    RC_LOG() << print_case(value);
    RC_ASSERT(comparison.differences.empty());
  });
  EXPECT_TRUE(holds);
}

TEST(TorchSyncProps, TheSameCaseHasTheSameTrace) {
  const auto simulator = make_sim_executor();
  const bool holds = rc::check("the same case has the same trace", [&] {
    Case value = test::random_case();
    value.ddp.sync = "torch";
    const Program program = compile_subject(value);
    RC_ASSERT(simulator->execute(program).trace_hash == simulator->execute(program).trace_hash);
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace lockstep::harness
