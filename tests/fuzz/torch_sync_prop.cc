// SPDX-License-Identifier: Apache-2.0
// Drawn scripts under our DDP and PyTorch's: the same bits, collectives and ends.
#include <gtest/gtest.h>
// rapidcheck/gtest.h uses GoogleTest's names and must come after it.
#include <rapidcheck/gtest.h>

#include "harness/fuzz/draw/generator.h"
#include "harness/judge/peer_comparison.h"
#include "harness/judge/peer_rules.h"
#include "harness/program.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {
namespace {

Space peer_space() {
  Space space;
  space.for_peer = true;
  return space;
}

TEST(TorchSyncProps, DoesWhatOursDoes) {
  const auto simulator = make_sim_executor();
  const bool holds = rc::check("PyTorch's reducer does what ours does", [&] {
    Case value = *scripts(peer_space());
    value.schedule = ScheduleSpec();
    RC_ASSERT(why_peer_may_differ(value).empty());
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
    Case value = *scripts(peer_space());
    value.schedule = ScheduleSpec();
    value.ddp.sync = "torch";
    const Program program = compile_subject(value);
    RC_ASSERT(simulator->execute(program).trace_hash == simulator->execute(program).trace_hash);
  });
  EXPECT_TRUE(holds);
}

}  // namespace
}  // namespace lockstep::harness::fuzz
