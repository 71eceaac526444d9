// SPDX-License-Identifier: Apache-2.0
// Every candidate change: a case that it cures, and cases that it does not.
#include "harness/judge/cures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "harness/scenario.h"

namespace lockstep::harness {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Case case_of(const std::string& text) {
  const std::string head =
      "schema = 1\ntitle = \"t\"\n[expect]\noracles = [\"ranks\", \"replay\"]\n[world]\nranks = "
      "3\n";
  return parse_scenario_text(head + text, "test.toml").front().value;
}

class CuresTest : public ::testing::Test {
 protected:
  CureSearch search(const std::string& text, const std::string& also = "") {
    return find_cures(case_of(text), *simulator_, also);
  }
  std::string cure(const std::string& text) {
    const CureSearch found = search(text);
    return found.cure ? found.cure->name : "none";
  }
  /// Whether `name` is proven, whatever else is.
  bool cures(const std::string& text, const std::string& name) {
    for (const TriedCure& tried : search(text, name).tried) {
      if (tried.name == name) {
        return tried.proven;
      }
    }
    return false;
  }

  std::unique_ptr<Executor> simulator_ = make_sim_executor();
};

const char* const kBranch = R"(
[model]
kind = "graph"
blocks = { trunk = "linear 4 4", vision = "linear 4 8", text = "linear 4 2" }
forward = ["trunk", ["vision", "text"]]
[[at]]
rank = 1
step = 1
skip = ["vision"]
)";

const char* const kBuffers = R"(
[model]
kind = "graph"
blocks = { a = "linear 4 4", norm = "batch_norm 4", b = "linear 4 2" }
)";

TEST_F(CuresTest, OptionsForABranchThatOneRankLeavesOut) {
  EXPECT_EQ(cure(kBranch), "find_unused_parameters");
  EXPECT_TRUE(cures(kBranch, "run_all_blocks"));
  EXPECT_FALSE(cures(kBranch, "static_graph")) << "the graph changes";
  EXPECT_FALSE(cures(kBranch, "join")) << "inputs are even";
}

TEST_F(CuresTest, AStaticGraphForACheckpointThatIsUsedTwice) {
  EXPECT_EQ(cure(R"(
[model]
kind = "graph"
blocks = { a = "linear 4 4", b = "linear 4 4 checkpoint_reentrant", c = "same b" }
forward = ["a", "b", "c"]
)"),
            "static_graph");
}

TEST_F(CuresTest, JoinForUnevenInputs) {
  const std::string uneven = "[train]\nsteps = 3\nsteps_of_rank = [3, 1, 3]\n";
  EXPECT_EQ(cure(uneven), "join");
  EXPECT_TRUE(cures(uneven, "join_divide_by_active"));
  EXPECT_TRUE(cures(uneven, "leave_together"));
}

TEST_F(CuresTest, TheInnerModuleForAnEvaluationOnOneRank) {
  const std::string alone =
      std::string(kBuffers) + "[[at]]\nrank = 0\nstep = 1\nwhen = \"after_step\"\nevaluate = 1\n";
  EXPECT_EQ(cure(alone), "evaluate_inner_module");
  EXPECT_TRUE(cures(alone, "broadcast_buffers_off"));
  EXPECT_TRUE(cures(alone, "evaluate_on_all_ranks"));
  EXPECT_FALSE(cures(alone, "agreed_skip")) << "nobody skips";
}

TEST_F(CuresTest, AnAgreedSkipForAStepThatOneRankSkipsOrFailsIn) {
  for (const char* action : {"skip_step = true", "detach = true", "raise = \"out of memory\""}) {
    const std::string alone = std::string("[[at]]\nrank = 2\nstep = 1\n") + action + "\n";
    EXPECT_EQ(cure(alone), "agreed_skip") << action;
  }
  EXPECT_TRUE(cures("[[at]]\nrank = 2\nstep = 1\nraise = \"x\"\n", "leave_together"));
}

TEST_F(CuresTest, LeavingTogetherForARankThatLeaves) {
  const std::string leaves = "[ddp]\nsync = \"flat\"\n[[at]]\nrank = 0\nstep = 1\nleave = true\n";
  EXPECT_EQ(cure(leaves), "leave_together") << "without buckets there is no join";
}

TEST_F(CuresTest, ACollectiveOfAllRanksOrOfNone) {
  const std::string alone =
      "[[at]]\nrank = 0\nstep = 1\nwhen = \"after_step\"\ncollective = \"all_reduce\"\n";
  EXPECT_EQ(cure(alone), "collective_on_all_ranks");
  EXPECT_TRUE(cures(alone, "without_extra_collective"));
  EXPECT_TRUE(cures(alone, "all_ranks"));
}

TEST_F(CuresTest, APlantedMistakeIsCuredByTakingItOut) {
  EXPECT_EQ(cure("[[fault]]\nkind = \"skip_collective\"\nrank = 1\nstep = 1\n"), "without_fault");
}

TEST_F(CuresTest, WhatAllRanksDoAlikeIsNotCuredByAgreeing) {
  const std::string alike = "[[at]]\nstep = 1\nwhen = \"after_backward\"\nraise = \"not finite\"\n";
  const CureSearch found = search(alike);
  EXPECT_FALSE(found.cure.has_value());
  for (const TriedCure& tried : found.tried) {
    EXPECT_EQ(tried.instead, "rank 0 failed with script") << tried.name;
  }
  EXPECT_THAT(found.tried, Not(IsEmpty()));
}

TEST_F(CuresTest, FinishingWithWrongNumbersIsNoCure) {
  const std::string wrong = std::string(kBranch) + "[[fault]]\nkind = \"no_division\"\n";
  const CureSearch found = search(wrong);
  ASSERT_FALSE(found.tried.empty());
  EXPECT_EQ(found.tried[0].name, "find_unused_parameters");
  EXPECT_FALSE(found.tried[0].proven);
  EXPECT_THAT(found.tried[0].instead, HasSubstr("diverged in step 0"));
}

TEST_F(CuresTest, NothingIsTriedBehindAProvenCureUnlessItIsAskedFor) {
  const auto names = [](const CureSearch& found) {
    std::vector<std::string> list;
    for (const TriedCure& tried : found.tried) {
      list.push_back(tried.name);
    }
    return list;
  };
  EXPECT_THAT(names(search(kBranch)), ElementsAre("find_unused_parameters"));
  const CureSearch both = search(kBranch, "run_all_blocks");
  EXPECT_THAT(names(both), ElementsAre("find_unused_parameters", "run_all_blocks"));
  EXPECT_EQ(both.cure->name, "find_unused_parameters");
}

}  // namespace
}  // namespace lockstep::harness
