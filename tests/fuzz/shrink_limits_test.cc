// SPDX-License-Identifier: Apache-2.0
// What holds of shrinking whatever was found: expectations, limits, repetition.
#include <gtest/gtest.h>

#include <algorithm>

#include "harness/fuzz/draw/draw.h"
#include "harness/fuzz/shrink/finding.h"
#include "harness/fuzz/shrink/shrink.h"
#include "harness/scenario.h"
#include "tests/fuzz/planted.h"

namespace lockstep::harness::fuzz {
namespace {

// Somebody claims that all is well, and what is issued; the claim is kept as far as it makes sense.
TEST(Shrink, WhatAPersonExpectsStays) {
  PlantedFinding found;
  found.value = case_of(R"(schema = 1
title = "A spoilt bucket shows"
[world]
ranks = 3
[model]
widths = [4, 5, 6, 2]
[train]
steps = 4
optimizer = { kind = "adam" }
[ddp]
bucket_cap_bytes = 1
find_unused_parameters = true
[[fault]]
kind = "corrupt_payload"
ranks = [1, 2]
step = 1
[[at]]
step = 3
lr = 0.5
[expect]
outcome = "equal"
oracles = ["ranks"]
issued = [{ step = 3, collectives = ["bucket 1"] }]
)");
  const Plant nothing = [](Case&) {};
  found.result = judge_planted(found.value, nothing);
  ASSERT_EQ(finding_kind(found.result), "diverged/ranks/gradient");
  const Shrunk shrunk =
      shrink(found.value, found.result, judge_many(nothing), without_time_limit());
  EXPECT_EQ(print_case(shrunk.value), R"(schema = 1
title = "A spoilt bucket shows"

[model]
widths = [1, 1]

[train]
steps = 1
batch_per_rank = 1

[[fault]]
kind = "corrupt_payload"
rank = 0

[expect]
outcome = "equal"
oracles = ["ranks"]
)");
}

// Of scripts as they are drawn.
TEST(Shrink, DrawnScriptsBecomeShortInFewSteps) {
  const Plant plant = fault("no_division");
  std::vector<std::int64_t> num_judged;
  for (std::uint64_t index = 0; num_judged.size() < 10; ++index) {
    PlantedFinding found;
    found.value = draw_script({}, 11, index);
    found.result = judge_planted(found.value, plant);
    if (finding_kind(found.result) != "diverged/replay/gradient") continue;
    const Shrunk shrunk =
        shrink(found.value, found.result, judge_many(plant), without_time_limit());
    EXPECT_EQ(finding_kind(shrunk.result), finding_kind(found.result));
    EXPECT_TRUE(shrunk.is_minimal);
    EXPECT_LT(num_lines(print_case(shrunk.value)), 25) << print_case(shrunk.value);
    num_judged.push_back(shrunk.num_judged);
  }
  std::sort(num_judged.begin(), num_judged.end());
  EXPECT_LE(num_judged[num_judged.size() / 2], 200);
}

TEST(Shrink, EndsAtItsLimits) {
  const Plant plant = fault("no_division");
  const PlantedFinding found = find(plant, kLarge);
  ShrinkLimits limits = without_time_limit();
  limits.judged_max = 5;
  const Shrunk few = shrink(found.value, found.result, judge_many(plant), limits);
  EXPECT_EQ(few.num_judged, 5);
  EXPECT_FALSE(few.is_minimal);
  EXPECT_EQ(finding_kind(few.result), "diverged/replay/gradient");
  limits = {};
  limits.seconds_max = 0.0;
  const Shrunk none = shrink(found.value, found.result, judge_many(plant), limits);
  EXPECT_EQ(none.num_judged, 0);
  EXPECT_EQ(print_case(none.value), print_case(found.value));
}

TEST(Shrink, JudgesNoCaseTwiceAndTheEndDoesNotDependOnHowManyAreJudgedAtATime) {
  const Plant plant = fault("no_division");
  const PlantedFinding found = find(plant, kLarge);
  std::vector<std::string> texts;
  const JudgeMany all_of_them = [&](const std::vector<Case>& cases,
                                    const std::function<bool(const CaseResult&)>&) {
    std::vector<CaseResult> results;
    for (const Case& value : cases) {
      texts.push_back(print_case(value));
      results.push_back(judge_planted(value, plant));
    }
    return results;
  };
  const Shrunk all = shrink(found.value, found.result, all_of_them, without_time_limit());
  const Shrunk one = shrink(found.value, found.result, judge_many(plant), without_time_limit());
  EXPECT_EQ(print_case(all.value), print_case(one.value));
  EXPECT_EQ(all.num_judged, one.num_judged);
  EXPECT_EQ(all.num_steps, one.num_steps);
  const std::size_t num_judged = texts.size();
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  EXPECT_EQ(texts.size(), num_judged);
}

}  // namespace
}  // namespace lockstep::harness::fuzz
