// SPDX-License-Identifier: Apache-2.0
// Random scripts under our DDP and PyTorch's: the same bits, collectives and ends.
#include <gtest/gtest.h>
// rapidcheck/gtest.h uses GoogleTest's names and must come after it.
#include <rapidcheck/gtest.h>

#include "harness/judge/peer_comparison.h"
#include "harness/judge/peer_rules.h"
#include "harness/program.h"
#include "harness/scenario.h"
#include "tests/harness/random_case.h"

namespace lockstep::harness {
namespace {

TEST(TorchSyncProps, DoesWhatOursDoes) {
  const auto simulator = make_sim_executor();
  const bool holds = rc::check("PyTorch's reducer does what ours does", [&] {
    const Case value = test::random_case();
    RC_PRE(why_peer_may_differ(value).empty());
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
