// SPDX-License-Identifier: Apache-2.0
// Mistakes that the prediction knows nothing of, and the smallest scripts that show them.
#include "harness/fuzz/shrink/shrink.h"

#include <gtest/gtest.h>

#include "harness/fuzz/shrink/finding.h"
#include "harness/scenario.h"
#include "sim/scheduler.h"
#include "tests/fuzz/planted.h"

namespace lockstep::harness::fuzz {
namespace {

/// Finds, shrinks, and checks what holds of every shrunk case; its text.
std::string shrunk_text(const Plant& plant, const std::string& kind, const char* large = kLarge) {
  const PlantedFinding found = find(plant, large);
  EXPECT_EQ(finding_kind(found.result), kind);
  const Shrunk shrunk = shrink(found.value, found.result, judge_many(plant), without_time_limit());
  const std::string text = print_case(shrunk.value);
  EXPECT_EQ(finding_kind(shrunk.result), kind);
  EXPECT_EQ(finding_kind(judge_planted(shrunk.value, plant)), kind);
  EXPECT_TRUE(shrunk.is_minimal);
  EXPECT_LE(shrunk.num_judged, 400);
  EXPECT_GT(shrunk.num_steps, 0);
  EXPECT_LT(num_lines(text), 25) << text;
  return text;
}

TEST(Shrink, AMissingDivisionNeedsTwoRanksAndOneStep) {
  EXPECT_EQ(shrunk_text(fault("no_division"), "diverged/replay/gradient"), R"(schema = 1
title = "Found by fuzzing"

[model]
widths = [1, 1]

[train]
steps = 1
batch_per_rank = 1

[expect]
outcome = "within_bound"
)");
}

TEST(Shrink, ABucketThatIsSpoiltLateNeedsTwoBucketsAndAllThoseSteps) {
  const auto corrupts = [](Case& value) {
    FaultSpec planted;
    planted.kind = "corrupt_payload";
    planted.ranks = {value.world.ranks - 1};
    planted.bucket = 1;
    for (std::int64_t step = 2; step < value.train.steps; ++step) planted.steps.push_back(step);
    if (value.world.ranks > 1 && !planted.steps.empty()) value.faults.push_back(planted);
  };
  EXPECT_EQ(shrunk_text(corrupts, "diverged/ranks/gradient"), R"(schema = 1
title = "Found by fuzzing"

[model]
widths = [1, 1]

[train]
batch_per_rank = 1

[ddp]
bucket_cap_bytes = 1

[expect]
outcome = "within_bound"
)");
}

TEST(Shrink, BuffersThatAreNotSyncedNeedBuffers) {
  EXPECT_EQ(shrunk_text(fault("buffers_not_synced"), "diverged/replay/buffer"), R"(schema = 1
title = "Found by fuzzing"

[model]
kind = "graph"
blocks = { norm = "batch_norm 1" }

[train]
steps = 1
micro_batches = 2
sync_on = "every"

[expect]
outcome = "equal"
oracles = ["ranks", "replay"]
)");
}

TEST(Shrink, ADeadlockNeedsOneRankThatStaysAway) {
  const auto stalls = [](Case& value) {
    if (!value.ddp.find_unused_parameters || value.world.ranks < 2) return;
    AtSpec at;
    at.ranks = {value.world.ranks - 1};
    at.stall = true;
    value.at.push_back(at);
  };
  EXPECT_EQ(shrunk_text(stalls, "deadlock"), R"(schema = 1
title = "Found by fuzzing"

[model]
widths = [1, 1]

[train]
steps = 1
batch_per_rank = 1

[ddp]
find_unused_parameters = true

[expect]
outcome = "within_bound"
)");
}

TEST(Shrink, ACrashNeedsItsBucket) {
  const auto crashes = [](Case& value) {
    FaultSpec planted;
    planted.kind = "crash";
    planted.site = "bucket";
    planted.bucket = 2;
    value.faults.push_back(planted);
  };
  EXPECT_EQ(shrunk_text(crashes, "crash"), R"(schema = 1
title = "Found by fuzzing"

[world]
ranks = 1

[model]
widths = [1, 1, 1]

[train]
steps = 1
batch_per_rank = 1

[ddp]
bucket_cap_bytes = 1
find_unused_parameters = true

[expect]
outcome = "equal"
)");
}

TEST(Shrink, WhatDependsOnTheScheduleIsReplayed) {
  const auto forgets = [](Case& value) {
    FaultSpec planted;
    planted.kind = "skip_wait";
    planted.ranks = {0};
    planted.steps = {2};
    value.world.simulator_only = true;
    if (value.world.ranks == 2 && value.train.steps > 2) value.faults.push_back(planted);
  };
  const Case shrunk = case_of(shrunk_text(forgets, "diverged/ranks/gradient", kLargeMlp));
  EXPECT_EQ(shrunk.schedule.policy, "replay");
  EXPECT_EQ(sim::parse_schedule(shrunk.schedule.deviations).size(), 1U);
  EXPECT_EQ(shrunk.model.widths, (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(shrunk.train.steps, 3);
}

}  // namespace
}  // namespace lockstep::harness::fuzz
