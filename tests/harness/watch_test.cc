// SPDX-License-Identifier: Apache-2.0
// When a run of real processes is said to stand still, on a clock of the test's own.
#include "harness/execute/watch.h"

#include <gtest/gtest.h>

namespace lockstep::harness {
namespace {

using std::chrono::milliseconds;
using Advice = Watch::Advice;
using Time = Watch::Time;

WatchOptions options() {
  WatchOptions result;
  result.hang_after = milliseconds(10'000);
  result.settle = milliseconds(100);
  result.confirm = milliseconds(200);
  result.answer_within = milliseconds(1000);
  return result;
}

Watch::Answer waits_in(std::int64_t seq, std::int64_t progress = 1) { return {progress, seq}; }
Watch::Answer computes(std::int64_t progress = 1) { return {progress, std::nullopt}; }

Time at(std::int64_t ms) { return milliseconds(ms); }

/// Opens the round that is due at `ms` and lets rank 0 give `answer`.
Advice ask_rank_0(Watch& watch, std::int64_t ms, const Watch::Answer& answer) {
  EXPECT_EQ(watch.advise(at(ms)), Advice::kAsk);
  watch.note_answer(0, watch.round(), answer, at(ms));
  return watch.advise(at(ms));
}

TEST(WatchTest, NobodyIsAskedWhileAllRanksAreAliveAndTheTimeIsNotUp) {
  Watch watch(2, options(), at(0));
  EXPECT_EQ(watch.advise(at(9'999)), Advice::kWait);
  EXPECT_EQ(watch.next_time(), at(10'000));
}

TEST(WatchTest, EverySignOfLifePutsTheQuestionOff) {
  Watch watch(2, options(), at(0));
  watch.note_progress(at(5'000));
  EXPECT_EQ(watch.advise(at(14'999)), Advice::kWait);
  EXPECT_EQ(watch.advise(at(15'000)), Advice::kAsk);
}

TEST(WatchTest, ARunIsHungWhenAnswersComeAfterTheQuietTime) {
  Watch watch(2, options(), at(0));
  ASSERT_EQ(watch.advise(at(10'000)), Advice::kAsk);
  watch.note_answer(0, watch.round(), waits_in(3), at(10'001));
  EXPECT_EQ(watch.advise(at(10'001)), Advice::kWait);
  watch.note_answer(1, watch.round(), computes(), at(10'002));
  EXPECT_EQ(watch.advise(at(10'002)), Advice::kStandsStill);
}

TEST(WatchTest, WhoDoesNotAnswerIsWaitedForOneSecondOnly) {
  Watch watch(2, options(), at(0));
  ASSERT_EQ(watch.advise(at(10'000)), Advice::kAsk);
  watch.note_answer(0, watch.round(), waits_in(3), at(10'001));
  EXPECT_EQ(watch.advise(at(10'999)), Advice::kWait);
  EXPECT_EQ(watch.advise(at(11'000)), Advice::kStandsStill);
  EXPECT_TRUE(watch.has_answered(0));
  EXPECT_FALSE(watch.has_answered(1));
}

TEST(WatchTest, ASignOfLifeDuringTheQuestionMeansThatNothingHangs) {
  Watch watch(1, options(), at(0));
  ASSERT_EQ(watch.advise(at(10'000)), Advice::kAsk);
  watch.note_progress(at(10'001));
  watch.note_answer(0, watch.round(), waits_in(3), at(10'002));
  EXPECT_EQ(watch.advise(at(10'002)), Advice::kWait);
  EXPECT_EQ(watch.next_time(), at(20'001));
}

TEST(WatchTest, WaitingForARankThatEndedIsAFactOnceConfirmed) {
  Watch watch(2, options(), at(0));
  watch.note_ended(1, 3, at(50));
  EXPECT_EQ(watch.advise(at(149)), Advice::kWait);
  EXPECT_EQ(ask_rank_0(watch, 150, waits_in(3)), Advice::kWait);
  EXPECT_EQ(watch.advise(at(349)), Advice::kWait);
  EXPECT_EQ(ask_rank_0(watch, 350, waits_in(3)), Advice::kStandsStill);
}

TEST(WatchTest, WaitingInWhatTheEndedRankIssuedIsNoFact) {
  Watch watch(2, options(), at(0));
  watch.note_ended(1, 4, at(50));
  std::int64_t ms = 150;
  for (; ms < 10'050; ms += 200) {
    EXPECT_EQ(ask_rank_0(watch, ms, waits_in(3)), Advice::kWait) << ms;
  }
  EXPECT_EQ(ask_rank_0(watch, ms, waits_in(3)), Advice::kStandsStill) << ms;
}

TEST(WatchTest, OneRankThatComputesMakesItNoFact) {
  Watch watch(3, options(), at(0));
  watch.note_ended(1, 3, at(50));
  for (const std::int64_t ms : {150, 350, 550}) {
    ASSERT_EQ(watch.advise(at(ms)), Advice::kAsk);
    watch.note_answer(0, watch.round(), waits_in(3), at(ms));
    watch.note_answer(2, watch.round(), computes(), at(ms));
    EXPECT_EQ(watch.advise(at(ms)), Advice::kWait);
  }
}

TEST(WatchTest, OneRankThatDoesNotAnswerMakesItNoFact) {
  Watch watch(3, options(), at(0));
  watch.note_ended(1, 3, at(0));
  for (const std::int64_t ms : {100, 1'300, 2'500}) {
    EXPECT_EQ(ask_rank_0(watch, ms, waits_in(3)), Advice::kWait);
    EXPECT_EQ(watch.advise(at(ms + 1'000)), Advice::kWait);
  }
}

TEST(WatchTest, ARankThatMovedOnToAnotherWaitIsAskedAgain) {
  Watch watch(2, options(), at(0));
  watch.note_ended(1, 3, at(0));
  EXPECT_EQ(ask_rank_0(watch, 100, waits_in(3, 7)), Advice::kWait);
  // It moved: its peer was needed less than it seemed, or an error is on its way.
  EXPECT_EQ(ask_rank_0(watch, 300, waits_in(4, 9)), Advice::kWait);
  EXPECT_EQ(watch.next_time(), at(500));
  EXPECT_EQ(ask_rank_0(watch, 500, waits_in(4, 9)), Advice::kStandsStill);
}

TEST(WatchTest, ARankThatDiedIsNeededForEverything) {
  Watch watch(2, options(), at(0));
  watch.note_ended(1, 0, at(0));
  EXPECT_EQ(ask_rank_0(watch, 100, waits_in(0)), Advice::kWait);
  EXPECT_EQ(ask_rank_0(watch, 300, waits_in(0)), Advice::kStandsStill);
}

TEST(WatchTest, AnswersToEarlierRoundsDoNotCount) {
  Watch watch(1, options(), at(0));
  ASSERT_EQ(watch.advise(at(10'000)), Advice::kAsk);
  watch.note_answer(0, watch.round() - 1, waits_in(3), at(10'001));
  EXPECT_FALSE(watch.has_answered(0));
  EXPECT_EQ(watch.advise(at(10'001)), Advice::kWait);
}

}  // namespace
}  // namespace lockstep::harness
