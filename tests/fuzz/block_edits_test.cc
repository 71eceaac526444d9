// SPDX-License-Identifier: Apache-2.0
// After a change of its model a case still fits together.
#include "harness/fuzz/shrink/block_edits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/scenario.h"
#include "tests/fuzz/planted.h"

namespace lockstep::harness::fuzz {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

TEST(BlockEdits, LayersWithoutActivationAreAnMlpToo) {
  Case value = case_of(R"(schema = 1
[model]
kind = "graph"
blocks = { a = "linear 3 4 no_bias", b = "linear 4 2 no_bias" }
[expect]
outcome = "within_bound"
)");
  make_mlp(value);
  EXPECT_THAT(value.model.widths, ElementsAre(3, 4, 2));
  EXPECT_EQ(value.model.activation, "identity");
  EXPECT_FALSE(value.model.bias);
}

TEST(BlockEdits, WhatAnMlpCannotSayStaysAGraph) {
  for (const char* blocks :
       {"a = \"linear 3 4\", b = \"relu\"", "a = \"relu\", b = \"linear 3 4\"",
        "a = \"linear 3 4\", b = \"linear 4 2 no_bias\"", "a = \"scale 3\"",
        "a = \"linear 3 4\", b = \"relu\", c = \"linear 4 2\", d = \"tanh\", e = \"linear 2 2\"",
        "a = \"linear 3 4 checkpoint\", b = \"linear 4 2\""}) {
    Case value = case_of(std::string("schema = 1\n[model]\nkind = \"graph\"\nblocks = { ") +
                         blocks + " }\n[expect]\noutcome = \"within_bound\"\n");
    make_mlp(value);
    EXPECT_EQ(value.model.kind, "graph") << blocks;
  }
}

TEST(BlockEdits, EveryBlockIsReadBackAsItIsWritten) {
  for (const char* text :
       {"linear 4 8", "linear 4 8 no_bias checkpoint", "relu", "dropout 0.5", "dropout 0.25",
        "embedding 16 4 sparse", "conv2d 1 4 3 no_bias", "batch_norm 8", "same a", "all_to_all",
        "linear 2 2 complex64", "linear 2 2 checkpoint_reentrant float64", "gain 3"}) {
    EXPECT_EQ(block_text(parse_block(text).spec), text);
  }
}

}  // namespace
}  // namespace lockstep::harness::fuzz
