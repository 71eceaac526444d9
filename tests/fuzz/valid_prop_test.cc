// SPDX-License-Identifier: Apache-2.0
// Valid scripts, judged by every oracle that is promised for them: no accusation.
#include <gtest/gtest.h>

#include "harness/fuzz/draw/draw.h"
#include "harness/judge/judge.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {
namespace {

// Scripts number 0 to `count` - 1 of a seed.
void expect_no_accusation(const Space& space, std::uint64_t seed, std::uint64_t count) {
  const auto simulator = make_sim_executor();
  JudgeOptions options;
  options.executor = simulator.get();
  options.simulator = simulator.get();
  options.try_cures = false;
  for (std::uint64_t index = 0; index < count; ++index) {
    const Case value = draw_script(space, seed, index);
    const CaseResult result = judge_case({"script " + std::to_string(index), "", value}, options);
    EXPECT_TRUE(result.as_expected) << result.internal_error << result.outcome.reason << "\n"
                                    << print_case(value);
  }
}

TEST(ValidScripts, AreNotAccused) { expect_no_accusation({}, 20261129, 300); }

TEST(ValidScripts, OfAFlatReductionAreNotAccused) {
  Space space;
  space.sync = "flat";
  expect_no_accusation(space, 20261129, 40);
}

TEST(ValidScripts, OfAReductionPerParameterAreNotAccused) {
  Space space;
  space.sync = "per_parameter";
  expect_no_accusation(space, 20261129, 40);
}

#ifdef LOCKSTEP_WITH_TORCH_REDUCER
TEST(ValidScripts, OfPyTorchsReducerAreNotAccused) {
  Space space;
  space.sync = "torch";
  expect_no_accusation(space, 20261129, 60);
}
#endif

}  // namespace
}  // namespace lockstep::harness::fuzz
