// SPDX-License-Identifier: Apache-2.0
// What a case compiles to, for the subject and for both references.
#include "harness/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "harness/scenario.h"

namespace lockstep::harness {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Case case_of(const std::string& text) {
  return parse_scenario_text("schema = 1\ntitle = \"t\"\n" + text, "test.toml").front().value;
}

std::vector<bool> syncs_of(const Program& program, std::size_t rank, std::size_t step) {
  std::vector<bool> syncs;
  for (const MicroBatch& micro : program.ranks[rank].steps[step].micro_batches) {
    syncs.push_back(micro.sync);
  }
  return syncs;
}

TEST(ProgramTest, DealsEachSampleOfAnEpochToOneRank) {
  const Case value = case_of(
      "[world]\nranks = 4\n[data]\nsamples = 16\n[train]\nsteps = 1\n"
      "[expect]\noutcome = \"within_bound\"\n");
  std::vector<std::int64_t> all;
  for (const RankProgram& rank : compile_subject(value).ranks) {
    const auto& samples = rank.steps[0].micro_batches[0].parts[0].samples;
    EXPECT_EQ(samples.size(), 4U);
    all.insert(all.end(), samples.begin(), samples.end());
  }
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i], static_cast<std::int64_t>(i));
  }
}

TEST(ProgramTest, SerialBatchIsTheConcatenationOfTheRanks) {
  const Case value = case_of(
      "[world]\nranks = 3\n[train]\nmicro_batches = 2\n"
      "[expect]\noutcome = \"within_bound\"\n");
  const Program ranks = compile_replay(value);
  const Program serial = compile_serial(value);
  std::vector<std::int64_t> expected;
  for (const RankProgram& rank : ranks.ranks) {
    for (const MicroBatch& micro : rank.steps[1].micro_batches) {
      const auto& samples = micro.parts[0].samples;
      expected.insert(expected.end(), samples.begin(), samples.end());
    }
  }
  ASSERT_EQ(serial.ranks.size(), 1U);
  ASSERT_EQ(serial.ranks[0].steps[1].micro_batches.size(), 1U);
  const auto& parts = serial.ranks[0].steps[1].micro_batches[0].parts;
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].samples, expected);
  EXPECT_EQ(parts[0].mean_over, 12);
}

TEST(ProgramTest, SerialBatchKeepsRoutesApart) {
  const Case value = case_of(R"(
[model]
kind = "graph"
blocks = { a = "linear 4 4", b = "linear 4 4" }
[[at]]
rank = 1
step = 0
skip = ["b"]
[ddp]
find_unused_parameters = true
[expect]
outcome = "within_bound"
)");
  const Program serial = compile_serial(value);
  const auto& parts = serial.ranks[0].steps[0].micro_batches[0].parts;
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_THAT(parts[0].route.skip, IsEmpty());
  EXPECT_THAT(parts[1].route.skip, ElementsAre("b"));
}

TEST(ProgramTest, SyncFollowsTheScript) {
  const std::string window = "[train]\nbatch_per_rank = 3\nmicro_batches = 3\n";
  const std::string bound = "[expect]\noutcome = \"within_bound\"\n";
  EXPECT_THAT(syncs_of(compile_subject(case_of(window + bound)), 0, 0),
              ElementsAre(false, false, true));
  EXPECT_THAT(syncs_of(compile_subject(case_of(window + "sync_on = \"every\"\n" + bound)), 0, 0),
              ElementsAre(true, true, true));
  // H1: the flag is read in forward.
  const Case late = case_of(window + "no_sync_covers = \"backward\"\n" + bound);
  EXPECT_THAT(syncs_of(compile_subject(late), 0, 0), ElementsAre(true, true, true));
}

TEST(ProgramTest, ReferencesDoWhatWasMeant) {
  const Case value = case_of(R"(
[train]
batch_per_rank = 4
micro_batches = 2
[[fault]]
kind = "sync_before_last_micro_batch"
[expect]
outcome = "diverged"
)");
  EXPECT_THAT(syncs_of(compile_subject(value), 0, 0), ElementsAre(true, false));
  EXPECT_THAT(syncs_of(compile_replay(value), 0, 0), ElementsAre(false, true));
  EXPECT_EQ(compile_subject(value).ranks[0].steps[0].faults.size(), 1U);
  EXPECT_THAT(compile_replay(value).ranks[0].steps[0].faults, IsEmpty());
}

TEST(ProgramTest, ReferencesKnowOnlyWhatAllRanksDo) {
  const Case value = case_of(R"(
[[at]]
step = 1
lr = 0.5
[[at]]
rank = 1
step = 1
lr = 0.25
[[at]]
step = 1
sleep_ms = 1
[expect]
outcome = "diverged"
)");
  EXPECT_THAT(compile_subject(value).ranks[1].steps[1].events, ElementsAre(0, 1, 2));
  EXPECT_THAT(compile_replay(value).ranks[1].steps[1].events, ElementsAre(0));
}

}  // namespace
}  // namespace lockstep::harness
