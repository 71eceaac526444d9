// SPDX-License-Identifier: Apache-2.0
// What goes wrong on purpose: that it happens where it is said to, and that it is told where not.
#include "harness/disturbances.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/executor.h"
#include "harness/judge/judge.h"
#include "harness/scenario.h"

namespace lockstep::harness {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CaseResult result_of(const std::string& text) {
  const auto simulator = make_sim_executor();
  JudgeOptions options;
  options.executor = options.simulator = simulator.get();
  options.try_cures = false;
  CaseResult result =
      judge_case(parse_scenario_text("schema = 1\n" + text, "test.toml").front(), options);
  EXPECT_EQ(result.internal_error, "");
  return result;
}

const char* const kAnyOutcome = "[expect]\noutcome = \"within_bound\"\n";

TEST(DisturbancesTest, AFaultOfABucketThatIsNeverIssuedIsTold) {
  const CaseResult result =
      result_of(std::string("[world]\nsimulator_only = true\n"
                            "[[fault]]\nkind = \"skip_wait\"\nrank = 1\nstep = 1\nbucket = 99\n") +
                kAnyOutcome);
  EXPECT_EQ(result.outcome.kind, OutcomeKind::kWithinBound);
  EXPECT_FALSE(result.as_expected);
  EXPECT_THAT(result.complaints,
              ElementsAre(HasSubstr("fault.0 (skip_wait), rank 1, step 1, site bucket, bucket 99 "
                                    "never came about: what was issued there for that site is "
                                    "number 0")));
}

TEST(DisturbancesTest, AFaultWithoutEffectIsTold) {
  // Nothing was issued that the last collective of the run could change places with.
  const CaseResult result = result_of(
      "[train]\nsteps = 1\n[[fault]]\nkind = \"swap_collectives\"\nrank = 1\n"
      "[expect]\noutcome = \"within_bound\"\n");
  EXPECT_THAT(result.complaints,
              ElementsAre(HasSubstr("it changes nothing of what was issued there")));
}

TEST(DisturbancesTest, AnEventOfAStepThatIsNeverComeToIsTold) {
  const CaseResult result = result_of(
      "[[at]]\nstep = 1\nleave = true\n[[at]]\nrank = 1\nstep = 2\nlr = 0.5\n"
      "[expect]\noutcome = \"within_bound\"\n");
  EXPECT_THAT(result.complaints, ElementsAre(HasSubstr("at.1, rank 1, step 2 never came about: "
                                                       "rank 1 was last in step 1")));
}

TEST(DisturbancesTest, StepsHoldForCollectivesThatCarryNone) {
  const CaseResult result = result_of(
      "[model]\nkind = \"graph\"\nblocks = { a = \"linear 4 4\", norm = \"sync_batch_norm 4\" }\n"
      "[[fault]]\nkind = \"transport_error\"\nrank = 1\nstep = 2\nsite = \"sync_batch_norm\"\n"
      "[expect]\noutcome = \"deadlock\"\noracles = [\"ranks\", \"replay\"]\n"
      "error = \"peer_lost\"\nwaiting = [{ rank = 0, site = \"sync_batch_norm\" }]\n");
  EXPECT_THAT(result.complaints, IsEmpty());
  EXPECT_EQ(result.outcome.ranks[1].at_step, 2);
}

TEST(DisturbancesTest, ARankThatStallsIsTheOneTheOthersWaitFor) {
  const CaseResult result = result_of(
      "[world]\nranks = 3\n[[at]]\nrank = 2\nstep = 1\nwhen = \"after_forward\"\n"
      "stall = true\n[expect]\noutcome = \"deadlock\"\nerror = \"stalled\"\n"
      "waiting = [{ rank = 0, step = 1 }, { rank = 1, step = 1 }]\n");
  EXPECT_THAT(result.complaints, IsEmpty());
  EXPECT_THAT(result.outcome.ranks[0].waiting->waiting_for, ElementsAre(2));
  EXPECT_EQ(result.outcome.ranks[2].at_step, 1);
}

TEST(DisturbancesTest, ACutLinkKeepsARankInItsCollective) {
  const CaseResult result = result_of(
      "[world]\nranks = 3\n[train]\nsteps = 4\n"
      "[[fault]]\nkind = \"cut_link\"\nrank = 1\nstep = 2\n"
      "[expect]\noutcome = \"deadlock\"\nwaiting = [{ rank = 0, step = 3 }, { rank = 2, step = 3 "
      "}, { rank = 1, collective = \"all_reduce\", site = \"bucket\", step = 2, bucket = 0 }]\n");
  EXPECT_THAT(result.complaints, IsEmpty());
}

TEST(DisturbancesTest, ASlowLinkTakesVirtualTimeAndNothingElse) {
  const std::string slow =
      "[world]\nsimulator_only = true\n"
      "[[fault]]\nkind = \"slow_link\"\nrank = 1\nstep = 1\ndelay_ms = 30\n";
  EXPECT_THAT(result_of(slow + kAnyOutcome).complaints, IsEmpty());
  // Rank 0 is through with step 1 at once, and cannot be with step 2 before the 30 ms are over.
  EXPECT_THAT(result_of(slow + "[[at]]\nrank = 0\nfrom_ms = 25\nwhen = \"after_backward\"\n"
                               "raise = \"late\"\n[expect]\noutcome = \"error\"\n"
                               "rank = 0\nstep = 2\nmessage = \"late\"\n")
                  .complaints,
              IsEmpty());
  EXPECT_THAT(result_of(slow + "[[at]]\nrank = 0\nfrom_ms = 35\nraise = \"late\"\n" + kAnyOutcome)
                  .complaints,
              Contains(HasSubstr("or not after 35 ms")));
}

TEST(DisturbancesTest, AnEventByTimeHappensOnce) {
  const CaseResult result = result_of(
      "[world]\nsimulator_only = true\n[[at]]\nstep = 0\nsleep_ms = 10\n"
      "[[at]]\nfrom_ms = 5\ncollective = \"barrier\"\n[expect]\noutcome = \"within_bound\"\n"
      "issued = [{ step = 1, collectives = [\"rebuild_order 5\", \"rebuild_sizes 1\", "
      "\"bucket 212\"] }]\n");
  EXPECT_THAT(result.complaints, IsEmpty());
}

TEST(DisturbancesTest, AnExtraCollectiveComesBeforeTheBucketItIsPlantedAt) {
  const CaseResult result = result_of(
      "[ddp]\nfirst_bucket_cap_bytes = 1\nbucket_cap_bytes = 1\n[train]\nsteps = 2\n"
      "[[at]]\nstep = 1\nsite = \"bucket\"\nbucket = 2\ncollective = \"all_gather\"\n"
      "[expect]\noutcome = \"within_bound\"\n"
      "issued = [{ step = 1, collectives = [\"rebuild_order 5\", \"rebuild_sizes 4\", "
      "\"bucket 4\", \"bucket 64\", \"script 1\", \"bucket 16\", \"bucket 128\"] }]\n");
  EXPECT_THAT(result.complaints, IsEmpty());
}

TEST(DisturbancesTest, ABufferThatAppearsLateIsBroadcastWithTheOthers) {
  const std::string with_buffers =
      "[model]\nkind = \"graph\"\nblocks = { a = \"linear 4 4\", norm = \"batch_norm 4\" }\n"
      "[[at]]\nstep = 1\nadd_buffer = 3\n";
  EXPECT_THAT(
      result_of(with_buffers + "[expect]\noutcome = \"equal\"\noracles = [\"ranks\", \"replay\"]\n")
          .complaints,
      IsEmpty());
  EXPECT_THAT(result_of(with_buffers +
                        "rank = 1\n[expect]\noutcome = \"error\"\n"
                        "oracles = [\"ranks\", \"replay\"]\nerror = \"desync\"\nstep = 1\n"
                        "message = \"rank 1 issued broadcast (buffers 0, step 1, 11 x Float\"\n")
                  .complaints,
              IsEmpty());
}

TEST(DisturbancesTest, AParameterReplacedInMidTrainingIsReducedNoMore) {
  const CaseResult result = result_of(
      "[[fault]]\nkind = \"replaced_parameter\"\nparameter = \"layer1.bias\"\nrank = 1\nstep = 1\n"
      "[ddp]\ninit_sync = true\n[expect]\noutcome = \"deadlock\"\n"
      "waiting = [{ rank = 0, site = \"bucket\", step = 1 }]\n"
      "never_ready = { rank = 1, parameters = [\"layer1.bias\"] }\n");
  EXPECT_THAT(result.complaints, IsEmpty());
}

}  // namespace
}  // namespace lockstep::harness
