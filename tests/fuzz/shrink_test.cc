// SPDX-License-Identifier: Apache-2.0
// Mistakes that the prediction knows nothing of, and the smallest scripts that show them.
#include "harness/fuzz/shrink.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "harness/fuzz/draw.h"
#include "harness/fuzz/finding.h"
#include "harness/fuzz/predict.h"
#include "harness/judge/judge.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {
namespace {

using Plant = std::function<void(Case&)>;

/// The case with a mistake in the subject, against what was expected without.
CaseResult judge_planted(const Case& value, const Plant& plant) {
  static const auto simulator = make_sim_executor();
  JudgeOptions options;
  options.executor = simulator.get();
  options.try_cures = false;
  NamedCase planted{"test", "", value};
  plant(planted.value);
  if (!check_case(planted.value).empty()) planted.value = value;
  return judge_case(planted, options);
}

JudgeMany judge_many(const Plant& plant) {
  return
      [plant](const std::vector<Case>& cases, const std::function<bool(const CaseResult&)>& stop) {
        std::vector<CaseResult> results;
        for (const Case& value : cases) {
          results.push_back(judge_planted(value, plant));
          if (stop(results.back())) break;
        }
        return results;
      };
}

struct Found {
  Case value;
  CaseResult result;
};

// What a drawn script looks like, and worse.
const char* const kLarge = R"(schema = 1
title = "Found by fuzzing"
seed = 417
[world]
ranks = 4
[schedule]
policy = "pct"
[model]
kind = "graph"
blocks = { stem = "linear 3 6", b0 = "linear 6 6 checkpoint", b1 = "scale 6", b2 = "linear 6 6 no_bias", norm = "batch_norm 6", act = "tanh", spare = "linear 2 2", head = "linear 6 2" }
forward = ["stem", ["b0", "b1", "b2"], "norm", "act", "head"]
frozen = ["b1"]
[data]
samples = 96
shuffle = false
[train]
steps = 4
batch_per_rank = 12
micro_batches = 3
sync_on = "every"
clip_norm = 3.0
optimizer = { kind = "adamw", lr = 0.05, weight_decay = 0.125 }
[ddp]
first_bucket_cap_bytes = 64
bucket_cap_bytes = 100
gradient_as_bucket_view = true
find_unused_parameters = true
[[at]]
ranks = [1, 3]
step = 2
micro_batch = 1
skip = ["b0"]
[[at]]
step = 3
reload = true
[[at]]
rank = 2
skip = ["b2"]
[expect]
outcome = "equal"
oracles = ["ranks", "replay"]
)";

Found find(const Plant& plant) {
  Found found;
  found.value = parse_scenario_text(kLarge, "large").front().value;
  EXPECT_TRUE(expect_as_predicted(found.value));
  EXPECT_EQ(finding_kind(judge_planted(found.value, [](Case&) {})), "");
  found.result = judge_planted(found.value, plant);
  return found;
}

std::int64_t num_lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

/// Finds, shrinks, and checks what holds of every shrunk case; its text.
std::string shrunk_text(const Plant& plant, const std::string& kind) {
  const Found found = find(plant);
  EXPECT_EQ(finding_kind(found.result), kind);
  const Shrunk shrunk = shrink(found.value, found.result, judge_many(plant), {});
  const std::string text = print_case(shrunk.value);
  EXPECT_EQ(finding_kind(shrunk.result), kind);
  EXPECT_EQ(finding_kind(judge_planted(shrunk.value, plant)), kind);
  EXPECT_TRUE(shrunk.is_minimal);
  EXPECT_LE(shrunk.num_judged, 400);
  EXPECT_GT(shrunk.num_steps, 0);
  EXPECT_LT(num_lines(text), 25) << text;
  std::cout << "steps " << shrunk.num_steps << ", judged " << shrunk.num_judged << ", lines "
            << num_lines(print_case(found.value)) << " -> " << num_lines(text) << "\n";
  return text;
}

Plant fault(const std::string& kind) {
  return [kind](Case& value) {
    FaultSpec planted;
    planted.kind = kind;
    value.faults.push_back(planted);
  };
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
    planted.ranks = {value.world.ranks - 1};
    value.world.simulator_only = true;
    if (value.world.ranks > 1) value.faults.push_back(planted);
  };
  EXPECT_EQ(shrunk_text(forgets, "diverged/replay/gradient"), "");
}

TEST(Shrink, EndsAtItsLimits) {
  const Plant plant = fault("no_division");
  const Found found = find(plant);
  ShrinkLimits limits;
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
  const Found found = find(plant);
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
  const Shrunk all = shrink(found.value, found.result, all_of_them, {});
  const Shrunk one = shrink(found.value, found.result, judge_many(plant), {});
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
