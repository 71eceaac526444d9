// SPDX-License-Identifier: Apache-2.0
// Who is missing from what, the first wrong pairing, and how an unfinished reduction ended, shown
// on runs that were spoilt on purpose.
#include "harness/judge/standstill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "harness/judge/wait_for.h"
#include "harness/report/standing.h"
#include "harness/report/text_standing.h"
#include "harness/scenario.h"

namespace lockstep::harness {
namespace {

// Inside a test, `Run` is GoogleTest's.
using TrainingRun = Run;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

CollectiveRecord bucket(std::int64_t step, std::int64_t index = 0) {
  return {"all_reduce", "bucket", step, 42, "Float", index};
}

// `steps` buckets of each of three ranks, all of which finished.
TrainingRun finished_run(std::int64_t steps = 3) {
  TrainingRun run;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    RankRun& record = run.ranks.emplace_back();
    record.rank = rank;
    record.at_step = steps - 1;
    record.at_phase = "done";
    for (std::int64_t step = 0; step < steps; ++step) {
      record.collectives.push_back(bucket(step));
      record.steps.emplace_back().step = step;
    }
  }
  return run;
}

void let_wait(RankRun& rank, std::int64_t seq, std::vector<std::int64_t> others) {
  const CollectiveRecord& in = rank.collectives[static_cast<std::size_t>(seq)];
  rank.ending = Ending::kWaiting;
  rank.at_phase = "backward";
  rank.waiting = WaitingIn{in.collective, in.site,  seq,      in.step,
                           in.bucket,     in.numel, in.dtype, std::move(others)};
}

TEST(FirstWrongPairingTest, AlikeSequencesHaveNone) {
  TrainingRun run = finished_run();
  EXPECT_FALSE(first_wrong_pairing(run).has_value());
  // A rank that stopped issuing is missing; it has met nobody in a wrong collective.
  run.ranks[1].collectives.pop_back();
  EXPECT_FALSE(first_wrong_pairing(run).has_value());
}

TEST(FirstWrongPairingTest, SeesEveryFieldAndTheFirstPlace) {
  const std::vector<void (*)(CollectiveRecord&)> spoilers = {
      [](CollectiveRecord& r) { r.collective = "broadcast"; },
      [](CollectiveRecord& r) { r.site = "buffers"; },
      [](CollectiveRecord& r) { ++r.step; },
      [](CollectiveRecord& r) { ++r.bucket; },
      [](CollectiveRecord& r) { ++r.numel; },
      [](CollectiveRecord& r) { r.dtype = "Double"; },
  };
  for (const auto& spoil : spoilers) {
    TrainingRun run = finished_run();
    spoil(run.ranks[1].collectives[1]);
    spoil(run.ranks[1].collectives[2]);
    const auto pairing = first_wrong_pairing(run);
    ASSERT_TRUE(pairing.has_value());
    EXPECT_EQ(pairing->seq, 1);
    ASSERT_EQ(pairing->issued.size(), 2U);
    EXPECT_THAT(pairing->issued[0].ranks, ElementsAre(0, 2));
    EXPECT_THAT(pairing->issued[1].ranks, ElementsAre(1));
    EXPECT_THAT(pairing->nothing, IsEmpty());
    EXPECT_TRUE(pairing->is_mixed) << "nobody noticed";
  }
}

TEST(FirstWrongPairingTest, WhatWasNoticedOrNeverCompleteWasNotMixed) {
  TrainingRun run = finished_run();
  run.ranks[1].collectives[1] = bucket(2);
  run.ranks[0].ending = Ending::kFailed;
  run.ranks[0].error_kind = "desync";
  EXPECT_FALSE(first_wrong_pairing(run)->is_mixed);

  run = finished_run();
  run.ranks[1].collectives[2] = bucket(2, 1);
  run.ranks[2].collectives.pop_back();
  let_wait(run.ranks[0], 2, {2});
  const auto pairing = first_wrong_pairing(run);
  EXPECT_FALSE(pairing->is_mixed);
  EXPECT_THAT(pairing->nothing, ElementsAre(2));
}

TEST(StuckCollectivesTest, NamesWhoIsMissingAndWhatTheyDidInstead) {
  TrainingRun run = finished_run();
  run.ranks[1].collectives.pop_back();
  run.ranks[2].collectives.resize(1);
  run.ranks[2].ending = Ending::kFailed;
  run.ranks[2].at_step = 1;
  run.ranks[2].at_phase = "forward";
  run.ranks[2].error_kind = "script";
  let_wait(run.ranks[0], 2, {1, 2});
  const auto stuck = stuck_collectives(run);
  ASSERT_EQ(stuck.size(), 1U);
  EXPECT_EQ(stuck[0].collective.seq, 2);
  EXPECT_THAT(stuck[0].waiting, ElementsAre(0));
  ASSERT_EQ(stuck[0].absent.size(), 2U);
  EXPECT_EQ(stuck[0].absent[0].rank, 1);
  EXPECT_EQ(stuck[0].absent[0].instead,
            "finished after 3 steps; the last that it issued was all_reduce (seq 1; bucket 0, step "
            "1), 42 x Float");
  EXPECT_EQ(stuck[0].absent[1].instead,
            "failed (step 1, forward) with script; the last that it issued was all_reduce (seq 0; "
            "bucket 0, step 0), 42 x Float");
}

TEST(StuckCollectivesTest, ARankMayBeAwaitedAndWaitElsewhere) {
  TrainingRun run = finished_run();
  run.ranks[1].collectives.pop_back();
  run.ranks[2].collectives.pop_back();
  run.ranks[2].ending = Ending::kLeft;
  let_wait(run.ranks[0], 2, {1, 2});
  let_wait(run.ranks[1], 1, {2});
  run.ranks[2].collectives.pop_back();
  const auto stuck = stuck_collectives(run);
  ASSERT_EQ(stuck.size(), 2U);
  EXPECT_EQ(stuck[0].collective.seq, 1);
  EXPECT_THAT(stuck[0].absent[0].instead, HasSubstr("left the training loop in step 2"));
  EXPECT_EQ(stuck[1].absent[0].instead,
            "waits in all_reduce (seq 1; bucket 0, step 1), 42 x Float");
}

TEST(StuckCollectivesTest, OtherWaysOfNotComing) {
  TrainingRun run = finished_run();
  let_wait(run.ranks[0], 2, {1, 2});
  run.ranks[1].ending = Ending::kWaiting;  // and in nothing
  run.ranks[1].at_phase = "backward";
  run.ranks[2].ending = Ending::kCrashed;
  run.ranks[2].signal = 9;
  run.ranks[2].collectives.clear();
  const auto absent = stuck_collectives(run)[0].absent;
  EXPECT_THAT(absent[0].instead, HasSubstr("is still busy outside any collective (step 2, "
                                           "backward)"));
  EXPECT_EQ(absent[1].instead, "was ended by SIGKILL (signal 9) (step 2)");
  run.ranks[2].ending = Ending::kFinished;
  EXPECT_EQ(stuck_collectives(run)[0].absent[1].instead,
            "finished after 3 steps; it issued no collective at all");
}

Case case_of(const std::string& text) {
  const std::string head =
      "schema = 1\ntitle = \"t\"\n[expect]\noracles = [\"ranks\", \"replay\"]\n";
  return parse_scenario_text(head + text, "test.toml").front().value;
}

TEST(DoneAloneTest, TellsWhatNotAllRanksDidAndOnlyAsFarAsTheRankCame) {
  const Case value = case_of(R"(
[[at]]
rank = 1
steps = [0, 2]
skip_step = true
[[at]]
rank = 1
step = 1
when = "after_step"
evaluate = 1
[[at]]
step = 1
lr = 0.5
[[at]]
rank = 1
step = 2
raise = "told by the end of the rank"
[[fault]]
kind = "skip_collective"
rank = 1
step = 1
)");
  RankRun rank;
  rank.rank = 1;
  EXPECT_THAT(done_alone(value, rank), ElementsAre("skipped everything in steps 0, 2",
                                                   "evaluated through the wrapper in step 1",
                                                   "planted mistake skip_collective in step 1"));
  rank.ending = Ending::kWaiting;
  rank.at_step = 1;
  rank.at_phase = "backward";
  EXPECT_THAT(done_alone(value, rank), ElementsAre("skipped everything in step 0",
                                                   "planted mistake skip_collective in step 1"))
      << "it had not come to the end of step 1";
  rank.at_phase = "script";
  EXPECT_EQ(done_alone(value, rank).size(), 3U);
  rank.rank = 0;
  EXPECT_THAT(done_alone(value, rank), IsEmpty());
}

// Three ranks, the first of which lacks a gradient of step 1.
Outcome unfinished() {
  Outcome outcome;
  outcome.ranks.resize(3);
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    outcome.ranks[static_cast<std::size_t>(rank)].rank = rank;
  }
  outcome.ranks[0].never_ready = {{"a.weight", 0, 1, 0, ""}};
  outcome.ranks[0].at_step = 1;
  return outcome;
}

std::vector<std::string> names_of(const Outcome& outcome) {
  std::vector<std::string> names;
  for (const CauseHypothesis& diagnosis : diagnoses_of(outcome)) {
    names.push_back(diagnosis.name);
  }
  return names;
}

TEST(DiagnosesTest, TellTheThreeEndingsOfAnUnfinishedReductionApart) {
  Outcome outcome = unfinished();
  outcome.kind = OutcomeKind::kDeadlock;
  outcome.ranks[2].ending = Ending::kWaiting;
  outcome.ranks[2].waiting = WaitingIn{"all_reduce", "bucket", 7, 1, 0, 42, "Float", {0}};
  EXPECT_THAT(names_of(outcome), ElementsAre("unfinished_hang"));
  EXPECT_EQ(diagnoses_of(outcome)[0].description,
            "a.weight never became ready on rank 0 in step 1, so it never launched a bucket in "
            "which rank 2 waits for ever; it had no other forward in which to notice");

  outcome.kind = OutcomeKind::kError;
  outcome.ranks[2] = RankState();
  outcome.ranks[0].ending = Ending::kFailed;
  outcome.ranks[0].error_kind = "reduction_unfinished";
  outcome.ranks[0].at_step = 2;
  EXPECT_THAT(names_of(outcome), ElementsAre("unfinished_error"));
  EXPECT_THAT(diagnoses_of(outcome)[0].description,
              HasSubstr("until the next forward, in step 2, noticed"));
  outcome.ranks[0].at_step = 1;
  EXPECT_THAT(diagnoses_of(outcome)[0].description, HasSubstr("until checked mode noticed"));

  outcome = unfinished();
  outcome.kind = OutcomeKind::kDiverged;
  EXPECT_THAT(names_of(outcome), ElementsAre("unfinished_drift"));
  EXPECT_THAT(diagnoses_of(outcome)[0].description,
              HasSubstr("no other forward followed, so nobody noticed"));
}

TEST(DiagnosesTest, AreNotMadeOfOtherThings) {
  Outcome outcome = unfinished();
  outcome.kind = OutcomeKind::kDeadlock;
  EXPECT_THAT(names_of(outcome), IsEmpty()) << "nobody waits";
  outcome.ranks[2].ending = Ending::kWaiting;
  outcome.ranks[2].waiting = WaitingIn{"all_reduce", "bucket", 7, 2, 0, 42, "Float", {0}};
  EXPECT_THAT(names_of(outcome), IsEmpty()) << "it waits in a bucket of another step";
  outcome.ranks[2].waiting = WaitingIn{"all_reduce", "bucket", 7, 1, 0, 42, "Float", {1}};
  EXPECT_THAT(names_of(outcome), IsEmpty()) << "it waits for another rank";
  outcome.ranks[2].waiting = WaitingIn{"barrier", "barrier", 7, 1, 0, 0, "", {0}};
  EXPECT_THAT(names_of(outcome), IsEmpty()) << "it waits in another collective";
  outcome.kind = OutcomeKind::kError;
  outcome.ranks[0].ending = Ending::kFailed;
  outcome.ranks[0].error_kind = "script";
  EXPECT_THAT(names_of(outcome), IsEmpty()) << "it failed for another reason";
}

TEST(StandingTest, RanksThatStandAlikeShareALine) {
  std::vector<RankState> ranks(64);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].rank = static_cast<std::int64_t>(i);
    ranks[i].ending = i == 1 ? Ending::kFailed : Ending::kWaiting;
    if (i != 1) {
      ranks[i].waiting = WaitingIn{"all_reduce", "bucket", 7, 1, 0, 42, "Float", {1}};
    }
  }
  ranks[1].error_message = "rank 1, step 2: \"no\"";
  ranks[1].error_kind = "k";
  ranks[1].at_step = 2;
  const auto groups = alike_ranks(ranks);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].ranks.size(), 63U);
  EXPECT_EQ(standing_text(*groups[1].first), "failed (step 2) with k: step 2: \"no\"");
  EXPECT_EQ(wait_for_dot(ranks),
            "digraph wait_for {\n  rankdir=LR;\n  node [shape=box];\n"
            "  r0 [label=\"ranks 0, 2-63\\nwait in all_reduce (seq 7; bucket 0, step 1), 42 x "
            "Float, for\\nrank 1\"];\n"
            "  r0 -> r1 [label=\"all_reduce 7\"];\n"
            "  r1 [label=\"rank 1\\nfailed (step 2) with k: step 2: \\\"no\\\"\", "
            "style=rounded];\n}\n");
  ranks[63].alone = {"skipped everything in step 0"};
  EXPECT_EQ(alike_ranks(ranks).size(), 3U);
}

TEST(StandingTest, AMismatchThatThePairingShowsIsNotToldTwice) {
  Outcome outcome;
  outcome.mismatch = MismatchInfo{3, 0, 1, "one thing", "another"};
  EXPECT_THAT(describe_standing(outcome), HasSubstr("rank 0 issued one thing"));
  outcome.wrong_pairing = WrongPairing{3, {{bucket(0), {0}}, {bucket(1), {1}}}, {}, false};
  EXPECT_THAT(describe_standing(outcome), Not(HasSubstr("one thing")));
  EXPECT_THAT(describe_standing(outcome),
              HasSubstr("  first wrong pairing, in seq 3:\n"
                        "    rank 0 issued all_reduce (bucket 0, step 0), 42 x Float\n"
                        "    rank 1 issued all_reduce (bucket 0, step 1), 42 x Float\n"));
  outcome.wrong_pairing->seq = 2;
  EXPECT_THAT(describe_standing(outcome), HasSubstr("one thing")) << "that came later";
}

TEST(StandingTest, CuresThatWereTriedInVainAreListed) {
  Outcome outcome;
  outcome.cure = Cure{"join", "set ddp.join"};
  outcome.cures_tried = {
      {"static_graph", false, "deadlock"}, {"join", true, ""}, {"all_ranks", true, ""}};
  EXPECT_EQ(describe_standing(outcome),
            "  cure, tried on the same schedule: join\n    set ddp.join\n"
            "  also a cure: all_ranks\n  tried in vain: static_graph (deadlock)\n");
}

}  // namespace
}  // namespace lockstep::harness
