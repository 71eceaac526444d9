// SPDX-License-Identifier: Apache-2.0
// Every mistake can be planted so that its ending is known; those of buffers, literally.
#include "harness/fuzz/break/break.h"

#include <gmock/gmock.h>

#include <map>
#include <string>

#include "harness/fuzz/predict/predict.h"
#include "harness/scenario.h"
#include "tests/harness/scenario_findings.h"

namespace lockstep::harness::fuzz {
namespace {

using ::testing::ElementsAre;

Case drawn(std::uint64_t number) {
  Case value;
  value.title = "drawn";
  value.seed = number + 1;
  value.world.ranks = static_cast<std::int64_t>(2 + number % 3);
  return value;
}

TEST(Break, EveryMistakeButOneHasAPrediction) {
  constexpr std::uint64_t kTries = 60;
  std::vector<std::string> without;
  for (const std::string& mistake : mistakes()) {
    bool any = false;
    for (std::uint64_t i = 0; i < kTries && !any; ++i) {
      Case value = drawn(i);
      ASSERT_TRUE(plant(value, {}, mistake, rc::Random(rc::Random::Key{3, i, 0, 0})));
      any = expect_as_predicted(value) && has_mistake(value);
    }
    if (!any) without.push_back(mistake);
  }
  EXPECT_THAT(without, ElementsAre("skip_wait"));  // what it reads is a matter of time
}

TEST(Break, IsTheSameForOneStateOfTheGenerator) {
  for (std::uint64_t i = 0; i < 20; ++i) {
    Case first = drawn(i), again = drawn(i);
    const rc::Random random(rc::Random::Key{4, i, 0, 0});
    ASSERT_TRUE(plant(first, {}, random) && plant(again, {}, random));
    EXPECT_EQ(print_case(first), print_case(again));
  }
}

TEST(Break, IsForOurDdpInTheSimulatorAndOverGloo) {
  Case value = drawn(0);
  Space space;
  space.sync = "torch";
  EXPECT_FALSE(plant(value, space, rc::Random()));
  space.sync = "ddp";
  space.backend = "gloo";
  EXPECT_TRUE(plant(value, space, rc::Random()));
  space.backend = "c10d_gloo";
  EXPECT_FALSE(plant(value, space, rc::Random()));
}

// Three ranks, three steps of one micro-batch, a batch_norm with three buffers of two dtypes.
ExpectSpec predicted(const std::string& body) {
  const Case value = test::only_case(
      "schema = 1\nexpect.outcome = \"equal\"\nexpect.oracles = [\"ranks\"]\nworld.ranks = 3\n"
      "train.steps = 3\ndata.samples = 36\nmodel.kind = \"graph\"\nmodel.blocks = { a = \"linear 3 "
      "4\", norm = \"batch_norm 4\", b = \"linear 4 2\" }\n" +
      body);
  const std::optional<ExpectSpec> expect = predict_broken(value);
  EXPECT_TRUE(expect.has_value()) << body;
  return expect.value_or(ExpectSpec());
}

TEST(PredictBroken, EventsOfBuffers) {
  const auto text = [](const ExpectSpec& expect) {
    std::string result = expect.outcome + " " + expect.phase + expect.error + " " +
                         std::to_string(expect.step.value_or(-9));
    for (const ExpectWaiting& waiting : expect.waiting) result += " " + waiting.site;
    return result;
  };
  const std::string in_1 = "[[at]]\nrank = 1\nstep = 1\n", in_2 = "[[at]]\nrank = 1\nstep = 2\n";
  const std::string after = "when = \"after_step\"\n";
  const std::map<std::string, std::string> kExpected = {
      // Its broadcast meets the others' next one (J5); after the last step it meets none.
      {in_1 + after + "evaluate = 1\n", "error desync 2"},
      {in_2 + after + "evaluate = 1\n", "deadlock  -9 buffers"},
      // J4: the training forward that follows does without.
      {in_2 + "evaluate = 2\n", "equal  -9"},
      // The rebuild, which no_grad leaves alone, comes first on the others.
      {in_1 + "evaluate = 1\n", "error desync 1"},
      {in_1 + "add_buffer = 2\n", "error desync 1"},
      {in_2 + after + "add_buffer = 2\n", "equal  -9"},
      {in_1 + after + "sync_buffers = \"mean\"\n", "error desync 2"},
      {in_2 + after + "sync_buffers = \"broadcast\"\n", "deadlock  -9 script"},
      {"[[at]]\nrank = 0\nstep = 1\nscale_buffers = 2.0\n" + after, "diverged buffer 2"},
      {in_1 + "copy_gradients = true\nwhen = \"after_backward\"\n", "equal  -9"},
      {"[[fault]]\nkind = \"slow_link\"\ndelay_ms = 3\nsite = \"buffers\"\n", "equal  -9"},
      {"[[fault]]\nkind = \"wrong_numel\"\nrank = 2\nstep = 1\nsite = \"buffers\"\n",
       "error desync 1"},
      {"ddp.join = \"off\"\ntrain.steps_of_rank = [3, 3, 2]\n", "deadlock  -9 buffers buffers"},
  };
  for (const auto& [body, expected] : kExpected) {
    EXPECT_EQ(text(predicted(body)), expected) << body;
  }
}

TEST(PredictBroken, AStaticGraphThatIsNone) {
  const auto ending = [](const std::string& who) {
    const Case value = test::only_case(
        "schema = 1\nexpect.outcome = \"equal\"\nexpect.oracles = [\"ranks\"]\ntrain.steps = 4\n"
        "ddp.static_graph = true\n[model]\nkind = \"graph\"\nblocks = { trunk = \"linear 4 4\", "
        "vision = \"linear 4 8\", text = \"linear 4 2\" }\nforward = [\"trunk\", [\"vision\", "
        "\"text\"]]\n[[at]]\nskip = [\"vision\"]\n" +
        who);
    const ExpectSpec expect = predict_broken(value).value_or(ExpectSpec());
    return expect.outcome + " " + expect.cause + expect.error + " " +
           std::to_string(expect.step.value_or(-9));
  };
  EXPECT_EQ(ending("step = 1\n"), "error unfinished_errorstatic_graph_changed 2");  // K4
  EXPECT_EQ(ending("step = 3\n"), "diverged unfinished_drift 3");
  EXPECT_EQ(ending("rank = 1\nstep = 1\n"), "deadlock unfinished_hang -9");
}

}  // namespace
}  // namespace lockstep::harness::fuzz
