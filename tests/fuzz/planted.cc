// SPDX-License-Identifier: Apache-2.0
// Large scripts, and judging with a planted mistake.
#include "tests/fuzz/planted.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "harness/fuzz/predict/predict.h"
#include "harness/fuzz/shrink/finding.h"
#include "harness/judge/judge.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {

extern const char* const kLarge = R"(schema = 1
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

extern const char* const kLargeMlp = R"(schema = 1
title = "Found by fuzzing"
seed = 58
[world]
ranks = 2
[schedule]
policy = "random"
runs = 8
[model]
widths = [3, 6, 5, 4, 2]
activation = "tanh"
frozen = ["layer1.bias"]
[train]
steps = 4
batch_per_rank = 6
micro_batches = 2
optimizer = { kind = "sgd", lr = 0.05, momentum = 0.5 }
[ddp]
first_bucket_cap_bytes = 1
bucket_cap_bytes = 24
gradient_as_bucket_view = true
[expect]
outcome = "within_bound"
)";

Case case_of(const std::string& text) { return parse_scenario_text(text, "test").front().value; }

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

PlantedFinding find(const Plant& plant, const char* text) {
  PlantedFinding found;
  found.value = case_of(text);
  EXPECT_TRUE(expect_as_predicted(found.value));
  EXPECT_EQ(finding_kind(judge_planted(found.value, [](Case&) {})), "");
  found.result = judge_planted(found.value, plant);
  return found;
}

std::int64_t num_lines(const std::string& text) {
  return std::count(text.begin(), text.end(), '\n');
}

Plant fault(const std::string& kind) {
  return [kind](Case& value) {
    FaultSpec planted;
    planted.kind = kind;
    value.faults.push_back(planted);
  };
}

}  // namespace lockstep::harness::fuzz
