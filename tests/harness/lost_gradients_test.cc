// SPDX-License-Identifier: Apache-2.0
// Every edge of a graph that can lose a gradient, planted and named.
#include "harness/judge/lost_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "harness/judge/judge.h"
#include "harness/program.h"
#include "harness/scenario.h"

namespace lockstep::harness {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

using Reasons = std::map<std::string, std::string>;

/// Why parameters never became ready on `rank`, as a whole judgement says.
Reasons reasons(const std::string& text, std::int64_t rank = 0) {
  const Case value =
      parse_scenario_text("schema = 1\ntitle = \"t\"\n" + text, "test.toml").front().value;
  const auto simulator = make_sim_executor();
  const Outcome outcome =
      judge_run(value, value.expect, simulator->execute(compile_subject(value)), nullptr, nullptr);
  Reasons result;
  for (const RankState& state : outcome.ranks) {
    for (const NeverReady& entry : state.never_ready) {
      if (state.rank == rank) {
        result[entry.parameter] = entry.why;
      }
    }
  }
  return result;
}

std::string graph(const std::string& blocks, const std::string& forward) {
  return "[model]\nkind = \"graph\"\nblocks = { " + blocks + " }\nforward = [" + forward +
         "]\n[train]\nsteps = 2\n[expect]\noracles = [\"ranks\", \"replay\"]\n";
}

const char* const kHeads =
    R"(trunk = "linear 4 4 no_bias", vision = "linear 4 8 no_bias", text = "linear 4 2 no_bias")";

TEST(LostGradientsTest, ABlockThatWasNotRun) {
  const std::string model = graph(kHeads, R"("trunk", ["vision", "text"])");
  EXPECT_THAT(reasons(model + "[[at]]\nrank = 1\nstep = 1\nskip = [\"vision\"]\n", 1),
              ElementsAre(Pair("vision.weight", "block vision was not run")));
  EXPECT_THAT(reasons(model + "[[at]]\nrank = 1\nstep = 1\nskip = [\"vision\"]\n", 0), IsEmpty());
}

TEST(LostGradientsTest, AForwardThatEndedEarly) {
  const std::string model =
      graph(R"(a = "linear 4 4 no_bias", b = "linear 4 4 no_bias")", R"("a", "b")");
  EXPECT_THAT(reasons(model + "[[at]]\nstep = 1\nexit_after = \"a\"\n"),
              ElementsAre(Pair("b.weight", "block b was not run: forward ended after block a")));
}

TEST(LostGradientsTest, ABlockThatNoStageNames) {
  EXPECT_THAT(reasons(graph(R"(a = "linear 4 4 no_bias", spare = "linear 4 4 no_bias")", R"("a")")),
              ElementsAre(Pair("spare.weight", "block spare is in no stage of forward")));
}

TEST(LostGradientsTest, AnOutputThatWasDetached) {
  EXPECT_THAT(
      reasons(graph("trunk = \"linear 4 4 no_bias\", act = \"relu\", cut = \"detach\", "
                    "text = \"linear 4 2 no_bias\"",
                    R"("trunk", "act", "cut", "text")")),
      ElementsAre(Pair("trunk.weight",
                       "block trunk: its output went through block cut (detach) before block "
                       "text")));
}

TEST(LostGradientsTest, AnOutputThatTheNextBlockDoesNotLookAt) {
  EXPECT_THAT(
      reasons(graph(R"(trunk = "linear 4 4 no_bias", off = "offset 4")", R"("trunk", "off")")),
      ElementsAre(Pair("trunk.weight",
                       "block trunk: its output went through block off (offset), which "
                       "hands no gradient back")));
}

TEST(LostGradientsTest, AGradientThatComesBackOnAnotherWayIsNotLost) {
  // What is cut off on one way comes back on the other.
  EXPECT_THAT(
      reasons(graph("a = \"linear 4 4 no_bias\", b = \"linear 4 4 no_bias\", cut = \"detach\", "
                    "keep = \"identity\", text = \"linear 4 2 no_bias\"",
                    R"(["a", "b"], ["cut", "keep"], "text")")),
      IsEmpty());
}

TEST(LostGradientsTest, AParameterThatWasFrozenOrReplacedAfterWrapping) {
  const std::string model =
      graph(R"(a = "linear 4 4 no_bias", b = "linear 4 4 no_bias")", R"("a", "b")");
  EXPECT_THAT(reasons(model + "[[at]]\nstep = 1\nfreeze = [\"a\"]\n"),
              ElementsAre(Pair("a.weight",
                               "it no longer requires a gradient: it was frozen after "
                               "the module was wrapped")));
  EXPECT_THAT(reasons(model + "[[fault]]\nkind = \"replaced_parameter\"\nparameter = "
                              "\"a.weight\"\n"),
              ElementsAre(Pair("a.weight",
                               "it was replaced after the module was wrapped: the "
                               "wrapper waits for the old one")));
}

TEST(LostGradientsTest, ALossThatDependsOnNothing) {
  const std::string model = graph(kHeads, R"("trunk", ["vision", "text"])");
  const Reasons detached = reasons(model + "[[at]]\nrank = 1\nstep = 1\ndetach = true\n", 1);
  ASSERT_EQ(detached.size(), 3U);
  EXPECT_EQ(detached.at("trunk.weight"),
            "no backward ran: the loss depended on no parameter (detach)");
}

TEST(LostGradientsTest, AnErrorBeforeTheBackwardIsNotBlamedOnTheGraph) {
  const std::string model = graph(kHeads, R"("trunk", ["vision", "text"])");
  const Reasons raised =
      reasons(model + "[[at]]\nrank = 1\nstep = 1\nwhen = \"after_forward\"\nraise = \"x\"\n", 1);
  ASSERT_EQ(raised.size(), 3U);
  EXPECT_EQ(raised.at("text.weight"), "the backward of step 1 did not come to it");
}

TEST(LostGradientsTest, TheMicroBatchCountsThatArmedTheReducer) {
  const std::string model = graph(kHeads, R"("trunk", ["vision", "text"])") +
                            "[[at]]\nrank = 1\nstep = 1\nmicro_batch = 1\nskip = [\"vision\"]\n";
  const auto with_micro_batches = [&](const std::string& sync_on) {
    std::string text = model;
    return text.replace(text.find("steps = 2\n"), 10,
                        "steps = 2\nmicro_batches = 2\nsync_on = \"" + sync_on + "\"\n");
  };
  EXPECT_THAT(reasons(with_micro_batches("every"), 1),
              ElementsAre(Pair("vision.weight", "block vision was not run")));
}

TEST(LostGradientsTest, AModuleOfTwoNamesRunsUnderEither) {
  EXPECT_THAT(reasons(graph(R"(a = "linear 4 4 no_bias", b = "same a", c = "linear 4 4 no_bias")",
                            R"("b")")),
              ElementsAre(Pair("c.weight", "block c is in no stage of forward")));
}

}  // namespace
}  // namespace lockstep::harness
