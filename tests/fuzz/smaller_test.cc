// SPDX-License-Identifier: Apache-2.0
// Smaller cases are sound, new, and smaller by the measure; of every script and every scenario.
#include "harness/fuzz/smaller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "harness/fuzz/block_edits.h"
#include "harness/fuzz/draw.h"
#include "harness/fuzz/predict.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Case case_of(const std::string& text) { return parse_scenario_text(text, "test").front().value; }

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

const char* const kGraph = R"(schema = 1
title = "all kinds of names"
[model]
kind = "graph"
blocks = { a = "linear 3 4", b = "linear 4 4", again = "same b", c = "tanh", d = "linear 4 2" }
forward = ["a", ["b", "again"], "c", "d"]
frozen = ["a.bias"]
tied = [["a.bias", "b.bias"]]
[[at]]
rank = 1
skip = ["b"]
[[at]]
freeze = ["b.weight", "d"]
[[fault]]
kind = "forgotten_parameter"
parameter = "b.weight"
[expect]
outcome = "diverged"
oracles = ["ranks", "replay"]
)";

TEST(BlockEdits, WhatNamedABlockThatIsGoneNamesAnotherOrNothing) {
  Case value = case_of(kGraph);
  drop_blocks(value, {"b"});
  EXPECT_EQ(value.model.blocks[1].second, "linear 4 4") << "the sharer has taken the module over";
  EXPECT_THAT(value.model.forward, IsEmpty()) << "all blocks in order";
  EXPECT_THAT(value.model.frozen, ElementsAre("a.bias"));
  EXPECT_EQ(value.at.size(), 1U);
  EXPECT_THAT(value.at[0].freeze, ElementsAre("a.weight", "d"));
  EXPECT_EQ(value.faults[0].parameter, "a.weight");
}

TEST(BlockEdits, SizesAreThoseOfWhatComesIn) {
  Case value = case_of(kGraph);
  value.model.tied.clear();
  value.faults.clear();
  value.at.clear();
  value.model.blocks[0].second = "linear 3 6";
  refit(value);
  EXPECT_EQ(value.model.blocks[1].second, "linear 6 4");
  EXPECT_EQ(value.model.blocks[4].second, "linear 4 2");
  EXPECT_THAT(check_case(value), IsEmpty());
}

TEST(BlockEdits, AGraphThatIsAnMlpIsWrittenAsOne) {
  Case value = case_of(R"(schema = 1
[model]
kind = "graph"
blocks = { a = "linear 3 4", b = "relu", c = "linear 4 2" }
[[at]]
freeze = ["c.weight"]
[[at]]
rank = 0
skip = ["b"]
[expect]
outcome = "within_bound"
)");
  make_mlp(value);
  EXPECT_EQ(value.model.kind, "mlp");
  EXPECT_THAT(value.model.widths, ElementsAre(3, 4, 2));
  EXPECT_THAT(value.at[0].freeze, ElementsAre("layer1.weight"));
  EXPECT_THAT(value.at[1].skip, ElementsAre("act0"));
  EXPECT_THAT(check_case(value), IsEmpty());
}

TEST(BlockEdits, EveryBlockIsReadBackAsItIsWritten) {
  for (const char* text :
       {"linear 4 8", "linear 4 8 no_bias checkpoint", "relu", "dropout 0.5", "dropout 0.25",
        "embedding 16 4 sparse", "conv2d 1 4 3 no_bias", "batch_norm 8", "same a", "all_to_all",
        "linear 2 2 complex64", "linear 2 2 checkpoint_reentrant float64", "gain 3"}) {
    EXPECT_EQ(block_text(parse_block(text).spec), text);
  }
}

TEST(Smaller, WhatAPersonExpectsStaysAndSoDoesWhatWasToGoWrong) {
  const Case value = case_of(kGraph);
  for (const Case& candidate : smaller(value)) {
    EXPECT_EQ(candidate.expect.outcome, "diverged");
    EXPECT_EQ(candidate.faults.size(), 1U);
    EXPECT_EQ(candidate.at.size(), 2U);
  }
}

}  // namespace
}  // namespace lockstep::harness::fuzz
