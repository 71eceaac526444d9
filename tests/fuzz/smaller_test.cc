// SPDX-License-Identifier: Apache-2.0
// Smaller cases are sound, new, and smaller by the measure; of every script and every scenario.
#include "harness/fuzz/shrink/smaller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "harness/fuzz/draw/draw.h"
#include "harness/fuzz/predict/predict.h"
#include "harness/scenario.h"
#include "tests/fuzz/planted.h"

namespace lockstep::harness::fuzz {
namespace {

using ::testing::IsEmpty;

/// Looks at all candidates of a case; their number.
std::size_t check_smaller(const Case& value) {
  const Measure before = measure(value);
  std::set<std::string> texts = {print_case(value)};
  const std::vector<Case> candidates = smaller(value);
  for (const Case& candidate : candidates) {
    const std::string text = print_case(candidate);
    EXPECT_TRUE(measure(candidate) < before) << text << "\nis not smaller than\n"
                                             << print_case(value);
    EXPECT_THAT(check_case(candidate), IsEmpty()) << text;
    EXPECT_TRUE(texts.insert(text).second) << "twice:\n" << text;
    EXPECT_EQ(candidate.ddp.sync, value.ddp.sync);
  }
  return candidates.size();
}

TEST(Smaller, OfEveryDrawnScriptIsSoundSmallerAndDistinct) {
  for (std::uint64_t index = 0; index < 500; ++index) {
    const Case value = draw_script({}, 3, index);
    EXPECT_GT(check_smaller(value), 0U) << print_case(value);
    if (::testing::Test::HasFailure()) break;
  }
}

TEST(Smaller, CandidatesAreFilesThatAreReadBackAsTheSame) {
  for (std::uint64_t index = 0; index < 40; ++index) {
    for (const Case& candidate : smaller(draw_script({}, 4, index))) {
      const std::string text = print_case(candidate);
      ASSERT_EQ(print_case(case_of(text)), text);
    }
  }
}

TEST(Smaller, CandidatesOfADrawnScriptHaveTheirOwnPrediction) {
  for (std::uint64_t index = 0; index < 40; ++index) {
    for (Case candidate : smaller(draw_script({}, 5, index))) {
      const std::string text = print_case(candidate);
      ASSERT_TRUE(expect_as_predicted(candidate));
      ASSERT_EQ(print_case(candidate), text);
    }
  }
}

// Every key that a scenario can have is in one of these.
TEST(Smaller, OfEveryScenarioIsSoundSmallerAndDistinct) {
  const ScenarioSet all = load_scenarios({LOCKSTEP_SCENARIOS_DIR});
  ASSERT_GT(all.cases.size(), 1'000U);
  std::string last_file;
  std::size_t num_files = 0;
  for (const NamedCase& named : all.cases) {
    if (named.file == last_file) continue;  // the other points of a file differ little
    last_file = named.file;
    ++num_files;
    check_smaller(named.value);
    ASSERT_FALSE(::testing::Test::HasFailure()) << named.file;
  }
  EXPECT_GT(num_files, 400U);
}

TEST(Smaller, OfADrawnScriptEndsAtTheSmallestThereIs) {
  for (std::uint64_t index = 0; index < 20; ++index) {
    Case value = draw_script({}, 6, index);
    for (std::vector<Case> next = smaller(value); !next.empty(); next = smaller(value)) {
      value = next.front();
    }
    EXPECT_EQ(value.world.ranks, 1) << print_case(value);
    EXPECT_EQ(value.train.steps, 1) << print_case(value);
    EXPECT_EQ(value.model.widths, (std::vector<std::int64_t>{1, 1})) << print_case(value);
    EXPECT_THAT(value.at, IsEmpty()) << print_case(value);
    EXPECT_EQ(value.schedule.policy, "round_robin");
  }
}

TEST(Smaller, WhatAPersonExpectsStaysAndSoDoesWhatWasToGoWrong) {
  const Case value = case_of(R"(schema = 1
[world]
ranks = 3
[train]
steps = 4
[[at]]
step = 1
lr = 0.5
[[fault]]
kind = "forgotten_parameter"
parameter = "layer1.weight"
[expect]
outcome = "diverged"
oracles = ["ranks", "replay"]
)");
  for (const Case& candidate : smaller(value)) {
    EXPECT_EQ(candidate.expect.outcome, "diverged");
    EXPECT_EQ(candidate.faults.size(), 1U);
    EXPECT_EQ(candidate.at.size(), 1U);
  }
}

}  // namespace
}  // namespace lockstep::harness::fuzz
