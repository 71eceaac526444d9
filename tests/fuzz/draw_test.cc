// SPDX-License-Identifier: Apache-2.0
// Scripts are drawn from seed and number alone, hold together, and are valid.
#include "harness/fuzz/draw/draw.h"

#include <gtest/gtest.h>

#include "harness/case_facts.h"
#include "harness/fuzz/draw/draw_topics.h"
#include "harness/fuzz/predict/predict.h"
#include "harness/fuzz/valid/valid.h"
#include "harness/judge/peer_rules.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {
namespace {

TEST(Draw, IsTheSameForOneSeedAndNumber) {
  for (std::uint64_t index = 0; index < 50; ++index) {
    EXPECT_EQ(print_case(draw_script({}, 7, index)), print_case(draw_script({}, 7, index)));
  }
  EXPECT_NE(print_case(draw_script({}, 7, 0)), print_case(draw_script({}, 8, 0)));
}

TEST(Draw, MakesValidCasesWithoutContradictions) {
  for (std::uint64_t index = 0; index < 200; ++index) {
    const Case value = draw_script({}, 1, index);
    EXPECT_TRUE(check_case(value).empty()) << print_case(value);
    EXPECT_EQ(why_not_valid(value), "") << print_case(value);
  }
}

// By construction: what is drawn and mended is hardly ever thrown away.
TEST(Draw, IsSoundAtOnce) {
  int num_sound = 0;
  constexpr int kCount = 500;
  const Space space;
  for (std::uint64_t index = 0; index < kCount; ++index) {
    Dice dice(rc::Random(rc::Random::Key{3, index, 0, 0}));
    Case value;
    draw_world(value, space, dice);
    draw_model(value, space, dice);
    draw_training(value, space, dice);
    draw_ddp(value, space, dice);
    draw_events(value, space, dice);
    draw_schedule(value, space, dice);
    value.expect.oracles = {"ranks"};
    num_sound += make_valid(value, space, dice) && check_case(value).empty() ? 1 : 0;
  }
  RecordProperty("sound_per_cent", 100 * num_sound / kCount);
  EXPECT_GE(100 * num_sound, 90 * kCount);
}

TEST(Draw, ChangesOneTopicAtATime) {
  int num_changed = 0;
  for (std::uint64_t index = 0; index < 100; ++index) {
    const Case value = draw_script({}, 1, index);
    const Case changed = redraw(value, {}, 2, index);
    EXPECT_TRUE(check_case(changed).empty()) << print_case(changed);
    EXPECT_EQ(why_not_valid(changed), "") << print_case(changed);
    EXPECT_EQ(print_case(changed), print_case(redraw(value, {}, 2, index)));
    num_changed += print_case(changed) != print_case(value) ? 1 : 0;
  }
  EXPECT_GT(num_changed, 70);  // of the seven topics one, a launch, is mostly none
}

TEST(Draw, KeepsToWhatAPeerDoesAsWell) {
  Space space;
  space.for_peer = true;
  for (std::uint64_t index = 0; index < 100; ++index) {
    EXPECT_EQ(why_peer_may_differ(draw_script(space, 1, index)), "");
  }
}

TEST(Draw, BrokenScriptsHaveOneMistakeAndAnEnding) {
  Space space;
  space.mode = Mode::kBroken;
  for (std::uint64_t index = 0; index < 200; ++index) {
    const Case value = draw_script(space, 1, index);
    EXPECT_TRUE(has_mistake(value)) << print_case(value);
    EXPECT_TRUE(check_case(value).empty());
    EXPECT_EQ(print_case(value), print_case(draw_script(space, 1, index)));
  }
}

TEST(Draw, KeepsToWhatARealTransportHas) {
  Space space;
  space.backend = "gloo";
  space.ranks_max = 3;
  for (const Mode mode : {Mode::kValid, Mode::kBroken}) {
    space.mode = mode;
    for (std::uint64_t index = 0; index < 200; ++index) {
      const Case value = draw_script(space, 1, index);
      EXPECT_TRUE(runs_on(value, "gloo"));
      EXPECT_LE(value.world.ranks, 3);
      EXPECT_EQ(value.schedule.policy, "round_robin");
      for (const AtSpec& at : value.at) EXPECT_LE(at.sleep_ms, 1);
    }
  }
}

// A rule of validity is worth something only if it sees what it is about.
TEST(Valid, NamesWhatDdpNeedNotFollow) {
  Case value;
  EXPECT_EQ(why_not_valid(value), "");
  value.train.sync_on = "never";
  EXPECT_NE(why_not_valid(value), "");
  value = Case();
  value.at.emplace_back().skip = {"layer1"};
  value.model.widths = {4, 4, 4};
  value.at.front().ranks = {1};
  EXPECT_NE(why_not_valid(value), "");
  value.ddp.find_unused_parameters = true;
  EXPECT_EQ(why_not_valid(value), "");
  value.train.steps_of_rank = {3, 1};
  EXPECT_NE(why_not_valid(value), "");
  value.ddp.join = "divide_by_initial";
  EXPECT_EQ(why_not_valid(value), "");
}

// E11, E13: hooks of an output out of the loss run, though the last forward was searched without
// it.
TEST(Valid, ABlockOutOfTheLossThatTheLastForwardLeavesOutIsReadyTwice) {
  Case value;
  value.model.kind = "graph";
  value.model.blocks = {{"a", "linear 2 2"}, {"b", "linear 2 2"}, {"c", "linear 2 2"}};
  value.model.forward = {{"a"}, {"b", "c"}};
  value.train.forwards_per_backward = 2;
  value.train.batch_per_rank = 4;
  value.ddp.find_unused_parameters = true;
  value.at.resize(1);
  value.at[0].without_loss = {"b"};
  EXPECT_EQ(why_not_valid(value), "");
  value.at.resize(2);
  value.at[1].skip = {"b"};
  value.at[1].forward = 1;
  EXPECT_NE(why_not_valid(value), "");
  value.at[1].forward = 0;
  EXPECT_EQ(why_not_valid(value), "");
}

// G3: gradients that lie in their buckets are divided, copied ones are multiplied.
TEST(Valid, AStepThatIsTriedAgainAfterAReductionIsAnotherWithViews) {
  Case value;
  value.train.micro_batches = 2;
  value.train.zero_grad = "zero";
  value.train.agree = "after_forward";
  value.train.no_sync_covers = "backward";  // the first micro-batch reduces, too (H1)
  AtSpec& at = value.at.emplace_back();
  at.when = "after_forward";
  at.micro_batch = 1;
  at.raise = "again";
  at.retry = true;
  EXPECT_EQ(why_not_valid(value), "");
  value.ddp.gradient_as_bucket_view = true;
  EXPECT_NE(why_not_valid(value), "");
  value.train.zero_grad = "none";
  EXPECT_EQ(why_not_valid(value), "");
}

// J6: while the loss is there, checks take its backward for one that is to come.
TEST(Valid, AnEvaluationBesideALossWithoutABackwardIsAccusedByChecks) {
  Case value;
  value.model.kind = "graph";
  value.model.blocks = {{"norm", "batch_norm 3"}};
  value.at.resize(2);
  value.at[0].detach = true;
  value.at[1].evaluate = 1;
  value.at[1].when = "after_backward";
  EXPECT_EQ(why_not_valid(value), "");
  value.ddp.checks = "fast";
  EXPECT_NE(why_not_valid(value), "");
  value.at[1].when = "after_step";
  EXPECT_EQ(why_not_valid(value), "");
}

}  // namespace
}  // namespace lockstep::harness::fuzz
