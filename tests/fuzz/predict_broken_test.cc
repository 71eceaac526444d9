// SPDX-License-Identifier: Apache-2.0
// Scripts with one mistake end as the rules say.
#include <gmock/gmock.h>

#include <map>
#include <set>
#include <string>

#include "harness/at_actions.h"
#include "harness/fault_kinds.h"
#include "harness/fuzz/break/break.h"
#include "harness/fuzz/draw/draw.h"
#include "harness/fuzz/predict/predict.h"
#include "harness/judge/judge.h"
#include "harness/scenario.h"
#include "tests/harness/scenario_findings.h"

namespace lockstep::harness::fuzz {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Space broken() {
  Space space;
  space.mode = Mode::kBroken;
  return space;
}

// The names of what a script has, faults and actions alike.
std::set<std::string> names_in(const Case& value) {
  std::set<std::string> names;
  for (const FaultSpec& fault : value.faults) names.insert(fault.kind);
  for (const AtSpec& at : value.at) {
    for (const std::string& action : actions_of(at)) names.insert(action);
  }
  if (!value.train.steps_of_rank.empty()) names.insert("uneven/" + value.ddp.join);
  if (value.launch.is_asked_for()) names.insert("launch/" + value.expect.error);
  if (value.ddp.checks != "off" && !value.expect.ends.empty()) {
    names.insert("checks/" + value.expect.ends.back().error);
  }
  return names;
}

/// Three ranks, four steps, two layers (layer0, layer1) in one bucket; `body` is TOML.
Case script(const std::string& body) {
  return test::only_case(
      "schema = 1\nexpect.outcome = \"equal\"\nexpect.oracles = [\"ranks\"]\n"
      "world.ranks = 3\ntrain.steps = 4\ntrain.batch_per_rank = 2\n"
      "model.activation = \"tanh\"\nmodel.widths = [3, 4, 2]\n" +
      std::string(body.find("data.") == 0 ? "" : "data.samples = 60\n") + body);
}

ExpectSpec predicted(const std::string& body) {
  const std::optional<ExpectSpec> expect = predict_broken(script(body));
  EXPECT_TRUE(expect.has_value()) << body;
  return expect.value_or(ExpectSpec());
}

std::string fault(const std::string& kind, const std::string& rest = "") {
  return "[[fault]]\nkind = \"" + kind + "\"\n" + rest;
}

// "ranks gradient at 2 on 1: cause (tensor)"
std::string divergence(const ExpectSpec& expect) {
  return expect.outcome + " " + expect.oracle + " " + expect.phase + " at " +
         std::to_string(expect.step.value_or(-9)) + " on " +
         std::to_string(expect.rank.value_or(-9)) + ": " + expect.cause + " " + expect.tensor;
}

// "failed desync 1" for each rank
std::vector<std::string> ends(const ExpectSpec& expect) {
  std::vector<std::string> texts = {expect.outcome};
  for (const ExpectEnd& end : expect.ends) {
    texts.push_back(end.ending + " " + end.error + " " + std::to_string(end.step.value_or(-9)));
  }
  return texts;
}

TEST(PredictBroken, AFaultOfNumbersShowsWhereItIsMade) {
  const std::string at_1_in_2 = "rank = 1\nstep = 2\n";
  const std::map<std::string, std::string> kExpected = {
      {fault("corrupt_gradient", at_1_in_2 + "parameter = \"layer1.weight\"\n"),
       "diverged ranks gradient at 2 on 1: corrupted layer1.weight"},
      {fault("corrupt_gradient"), "diverged replay gradient at 0 on 0: corrupted layer0.weight"},
      {fault("stale_gradient", "rank = 1\n"),
       "diverged ranks gradient at 1 on 1: stale_gradient layer0.weight"},
      {fault("mixed_steps", at_1_in_2), "diverged replay forward at 2 on 1: stale_batch "},
      {fault("same_batches"), "diverged replay forward at 0 on 1: same_batches "},
      {fault("sum_not_mean", at_1_in_2), "diverged replay forward at 2 on 1: times_batch "},
      {fault("bad_batch", at_1_in_2), "diverged replay forward at 2 on 1: not_finite "},
      {fault("no_division", "step = 2\n"),
       "diverged replay gradient at 2 on -9: times_world_size "},
      {fault("forgotten_parameter", "parameter = \"layer0.bias\"\n"),
       "diverged ranks gradient at 0 on -9: local_only layer0.bias"},
      {fault("optimizer_on_copies", "rank = 2\n"),
       "diverged ranks parameter at 0 on 2: not_updated "},
      {fault("shuffle_seed", "rank = 1\n"), "diverged replay forward at 0 on 1: own_shuffle "},
      {fault("corrupt_payload", at_1_in_2), "diverged ranks gradient at 2 on 1: corrupted "},
      {fault("skip_collective", "step = 2\n"),
       "diverged ranks gradient at 2 on -9: local_over_world_size "},
      {fault("wrong_dtype", "step = 2\n"),
       "diverged ranks gradient at 2 on -9: local_over_world_size "},
      {fault("wrong_numel", "step = 2\n"), "diverged ranks gradient at 2 on -9:  "},
      {fault("per_rank_init") + fault("no_initial_broadcast"),
       "diverged ranks init at -1 on 1: own_initialisation "},
      {"ddp.init_sync = false\n" + fault("per_rank_init", "rank = 2\n"),
       "diverged ranks init at -1 on 2: own_initialisation "},
      {"train.micro_batches = 2\n" + fault("sync_before_last_micro_batch", "step = 1\n"),
       "diverged ranks gradient at 1 on -9: micro_batch_not_reduced "},
      {"train.micro_batches = 2\n[[at]]\nstep = 1\nmicro_batches = 1\n" + fault("window_scale"),
       "diverged replay gradient at 1 on -9:  "},
      {"train.clip_norm = 0.001\nddp.sync = \"flat\"\n" + fault("clip_before_sync", "step = 1\n"),
       "diverged replay gradient at 1 on -9:  "},
      {"train.optimizer = { kind = \"adam\", lr = 0.1 }\n[[at]]\nstep = 2\nreload = true\n" +
           fault("optimizer_not_loaded", "rank = 2\n"),
       "diverged ranks parameter at 2 on 2: optimizer_state_lost "},
      {"[[at]]\nstep = 2\nreload = true\n" + fault("model_not_loaded"),
       "diverged replay forward at 2 on 0:  "},
      {"train.steps_of_rank = [4, 2, 3]\nddp.join = \"divide_by_active\"\n" + fault("join_divisor"),
       "diverged replay gradient at 2 on -9: join_divisor "},
      {"ddp.find_unused_parameters = true\n" +
           fault("replaced_parameter", at_1_in_2 + "parameter = \"layer0.bias\"\n"),
       "diverged ranks gradient at 2 on -9:  layer0.bias"},
  };
  for (const auto& [body, expected] : kExpected) {
    EXPECT_EQ(divergence(predicted(body)), expected) << body;
  }
}

TEST(PredictBroken, FaultsOfOtherModels) {
  const auto graph = [](const std::string& norm, const std::string& rest) {
    return test::only_case(
        "schema = 1\nexpect.outcome = \"equal\"\nexpect.oracles = [\"ranks\"]\n"
        "world.ranks = 3\ntrain.steps = 3\ndata.samples = 12\n"
        "[model]\nkind = \"graph\"\nblocks = { a = \"linear 3 16\", norm = \"" +
        norm + "\", b = \"linear 16 2\" }\n" + rest);
  };
  const auto of = [&](const std::string& norm, const std::string& rest) {
    return divergence(predict_broken(graph(norm, rest)).value_or(ExpectSpec()));
  };
  EXPECT_EQ(of("batch_norm 16", fault("buffers_not_synced")),
            "diverged replay buffer at 1 on 1: local_buffers ");
  EXPECT_EQ(of("sync_batch_norm 16", fault("local_batch_norm")),
            "diverged replay forward at 0 on 0: local_statistics ");
  EXPECT_EQ(of("dropout 0.5", fault("dropout_seed")),
            "diverged replay forward at 0 on 1: shared_noise ");
  // An epoch is one batch of each rank.
  EXPECT_EQ(of("tanh", fault("epoch_not_set", "rank = 2\n")),
            "diverged replay forward at 1 on 2: epoch_not_set ");
  EXPECT_THAT(
      ends(*predict_broken(graph("sync_batch_norm 16", fault("local_batch_norm", "rank = 1\n")))),
      ElementsAre("error", "failed desync 0", "failed desync 0", "failed desync 0"));
}

TEST(PredictBroken, WhoMeetsNobodyWaits) {
  const std::string at_1_in_3 = "rank = 1\nstep = 3\n";
  const std::string finished = "finished  -9", waits = "waiting  3";
  EXPECT_THAT(ends(predicted(fault("skip_collective", at_1_in_3))),
              ElementsAre("deadlock", waits, finished, waits));
  EXPECT_THAT(ends(predicted(fault("transport_error", at_1_in_3))),
              ElementsAre("error", finished, "failed peer_lost 3", finished));
  EXPECT_THAT(ends(predicted(fault("cut_link", "rank = 1\nstep = 2\n"))),
              ElementsAre("deadlock", waits, "waiting  2", waits));
  EXPECT_THAT(ends(predicted(fault("replaced_parameter", at_1_in_3 + "parameter = "
                                                                     "\"layer1.bias\"\n"))),
              ElementsAre("deadlock", waits, finished, waits));
  EXPECT_THAT(ends(predicted("train.steps_of_rank = [4, 3, 4]\n")),
              ElementsAre("deadlock", waits, finished, waits));
  EXPECT_THAT(ends(predicted("[[at]]\n" + at_1_in_3 + "leave = true\n")),
              ElementsAre("deadlock", waits, "left  3", waits));
  EXPECT_THAT(ends(predicted("[[at]]\n" + at_1_in_3 + "skip_step = true\n")),
              ElementsAre("deadlock", waits, finished, waits));
  EXPECT_THAT(ends(predicted("[[at]]\n" + at_1_in_3 + "detach = true\n")),
              ElementsAre("deadlock", waits, finished, waits));
  EXPECT_THAT(ends(predicted("[[at]]\n" + at_1_in_3 + "raise = \"full\"\n")),
              ElementsAre("deadlock", waits, "failed script 3", waits));
  EXPECT_THAT(ends(predicted("[[at]]\n" + at_1_in_3 + "stall = true\n")),
              ElementsAre("deadlock", waits, "waiting stalled 3", waits));
  EXPECT_THAT(ends(predicted("ddp.hook = \"all_reduce\"\n" + fault("hook_raises", at_1_in_3))),
              ElementsAre("error", finished, "failed script 3", finished));
  EXPECT_THAT(ends(predicted("ddp.hook = \"all_reduce\"\n" + fault("hook_result", at_1_in_3))),
              ElementsAre("error", finished, "failed hook_result_mismatch 3", finished));
  EXPECT_THAT(ends(predicted("world.timeout_ms = 1000\n[[at]]\n" + at_1_in_3 + "leave = true\n")),
              ElementsAre("error", "failed timed_out 3", "left  3", "failed timed_out 3"));
}

TEST(PredictBroken, WhoMeetsAnotherCollectiveFailsWithTheOthers) {
  const std::string at_1_in_1 = "rank = 1\nstep = 1\n";
  const auto all = [](const char* a, const char* b, const char* c) {
    return ElementsAre("error", std::string("failed ") + a, std::string("failed ") + b,
                       std::string("failed ") + c);
  };
  for (const char* const kind : {"wrong_numel", "wrong_dtype"}) {
    EXPECT_THAT(ends(predicted(fault(kind, at_1_in_1))), all("desync 1", "desync 1", "desync 1"));
  }
  const std::string buckets = "ddp.first_bucket_cap_bytes = 1\nddp.bucket_cap_bytes = 1\n";
  EXPECT_THAT(ends(predicted(buckets + fault("swap_collectives", at_1_in_1 + "bucket = 1\n"))),
              all("desync 1", "desync 1", "desync 1"));
  EXPECT_THAT(ends(predicted("[[at]]\n" + at_1_in_1 + "skip_step = true\n")),
              all("desync 1", "desync 2", "desync 1"));
  EXPECT_THAT(ends(predicted("[[at]]\n" + at_1_in_1 + "collective = \"barrier\"\n")),
              all("desync 1", "desync 1", "desync 1"));
  EXPECT_THAT(ends(predicted("[[at]]\n" + at_1_in_1 + "reload = true\n")),
              all("desync 1", "desync 0", "desync 1"));
}

TEST(PredictBroken, ModelsThatDifferAndProcessesThatEndAreTold) {
  for (const char* const kind : {"other_shape", "other_dtype", "forgotten_parameter"}) {
    EXPECT_THAT(ends(predicted(fault(kind, "rank = 1\nparameter = \"layer0.weight\"\n"))),
                ElementsAre("error", "failed model_mismatch -1", "failed model_mismatch -1",
                            "failed model_mismatch -1"));
  }
  for (const char* const kind : {"exit", "crash"}) {
    EXPECT_THAT(ends(predicted(fault(kind, "rank = 1\nstep = 2\n"))),
                ElementsAre("crash", "failed peer_lost 2", "crashed  2", "failed peer_lost 2"));
  }
  EXPECT_THAT(
      ends(predicted("world.timeout_ms = 1000\n" + fault("stop", "rank = 1\nstep = 2\n"))),
      ElementsAre("error", "failed timed_out 2", "failed peer_lost 2", "failed timed_out 2"));
}

TEST(PredictBroken, MissingFindUnusedHasThreeEndings) {
  const auto ending = [](const std::string& who) {
    const Case value = test::only_case(
        "schema = 1\nexpect.outcome = \"equal\"\nexpect.oracles = [\"ranks\"]\ntrain.steps = 3\n"
        "[model]\nkind = \"graph\"\nblocks = { trunk = \"linear 4 4\", vision = \"linear 4 8\", "
        "text = \"linear 4 2\" }\nforward = [\"trunk\", [\"vision\", \"text\"]]\n[[at]]\nskip = "
        "[\"vision\"]\n" +
        who);
    const ExpectSpec expect = predict_broken(value).value_or(ExpectSpec());
    return expect.outcome + " " + expect.cause + " " + expect.cure;
  };
  EXPECT_EQ(ending("rank = 1\nstep = 1\n"), "deadlock unfinished_hang find_unused_parameters");
  EXPECT_EQ(ending("step = 1\n"), "error unfinished_error find_unused_parameters");
  EXPECT_EQ(ending("step = 2\n"), "diverged unfinished_drift find_unused_parameters");
}

TEST(PredictBroken, EventsOfNumbersShowWhereTheyHappen) {
  const std::string in_2 = "rank = 1\nstep = 2\n";
  const std::map<std::string, std::string> kExpected = {
      {"[[at]]\n" + in_2 + "lr = 0.5\n", "diverged ranks parameter at 2 on 1:  "},
      {"[[at]]\n" + in_2 + "lr = 0.5\nwhen = \"after_step\"\n",
       "diverged ranks parameter at 3 on 1:  "},
      {"[[at]]\n" + in_2 + "keep_gradients = true\n", "diverged replay gradient at 2 on -9:  "},
      {"[[at]]\n" + in_2 + "ascend = 0.5\n", "diverged replay forward at 2 on 1:  "},
      {"[[at]]\nstep = 2\nbypass = true\n", "diverged ranks gradient at 2 on -9: local_only "},
      {"model.frozen = [\"layer1\"]\n[[at]]\n" + in_2 + "unfreeze = [\"layer1.bias\"]\n",
       "diverged ranks gradient at 2 on 1:  layer1.bias"},
      {"ddp.find_unused_parameters = true\n[[at]]\n" + in_2 + "freeze = [\"layer0.bias\"]\n",
       "diverged replay gradient at 2 on -9: rank_missing layer0.bias"},
      {"[[at]]\n" + in_2 + "skip_step = true\nwhen = \"after_backward\"\n",
       "diverged ranks parameter at 2 on 1:  (steps completed)"},
  };
  for (const auto& [body, expected] : kExpected) {
    EXPECT_EQ(divergence(predicted(body)), expected) << body;
  }
}

TEST(PredictBroken, AHookThatGoesLocalShowsInItsFirstLocalStep) {
  EXPECT_EQ(divergence(predicted("ddp.hook = \"noop\"\n")),
            "diverged ranks gradient at 0 on -9:  ");
  EXPECT_EQ(divergence(predicted("ddp.hook = \"post_local_sgd\"\n")),
            "diverged ranks gradient at 1 on -9:  ");
  EXPECT_FALSE(has_mistake(script("ddp.hook = \"all_reduce\"\n")));
}

TEST(PredictBroken, CheckedModeNamesADriftAtTheNextForwardAndAReplacedParameterAtOnce) {
  const std::string checked = "ddp.checks = \"fast\"\n";
  EXPECT_THAT(ends(predicted(checked + "[[at]]\nlr = 0.5\nrank = 1\nstep = 1\n")),
              ElementsAre("error", "failed replicas_differ 2", "failed replicas_differ 2",
                          "failed replicas_differ 2"));
  EXPECT_THAT(
      ends(predicted(checked + fault("replaced_parameter", "parameter = \"layer0.weight\"\n"))),
      ElementsAre("error", "failed parameter_replaced 0", "failed parameter_replaced 0",
                  "failed parameter_replaced 0"));
}

TEST(PredictBroken, CheckedModeTellsAReplacedParameterFromAConvertedOne) {
  const auto message = [](const std::string& by) {
    return predicted(
               "ddp.checks = \"fast\"\n" +
               fault("replaced_parameter", "parameter = \"layer0.weight\"\nby = \"" + by + "\"\n"))
        .message;
  };
  EXPECT_THAT(message("copy"), HasSubstr("another tensor"));
  EXPECT_THAT(message("round_trip"), HasSubstr("another dtype"));
}

TEST(PredictBroken, CheckedModeNamesASecondBackwardAndABufferThatWasSaved) {
  EXPECT_THAT(ends(predicted("ddp.checks = \"fast\"\ntrain.backwards_per_forward = 2\n")),
              ElementsAre("error", "failed unarmed_backward 0", "failed unarmed_backward 0",
                          "failed unarmed_backward 0"));
  const ExpectSpec saved =
      predict_broken(test::only_case(
                         "schema = 1\nexpect.outcome = \"equal\"\nexpect.oracles = [\"ranks\"]\n"
                         "data.samples = 32\ntrain.batch_per_rank = 8\ntrain.micro_batches = 2\n"
                         "train.forwards_per_backward = 2\nddp.checks = \"fast\"\nmodel = { kind = "
                         "\"graph\", blocks = { a = \"linear 4 6\", n = \"batch_norm 6\" } }\n"))
          .value_or(ExpectSpec());
  EXPECT_THAT(ends(saved),
              ElementsAre("deadlock", "waiting  0", "failed buffer_changed_while_saved 0"));
  ASSERT_EQ(saved.waiting.size(), 1U);
  EXPECT_EQ(saved.waiting[0].site, "checks");
}

TEST(PredictBroken, ProcessesThatDoNotMeetEndAsTheRulesOfRendezvousSay) {
  const std::string two = "{ rank = 0 }, { rank = 1 }";
  const std::map<std::string, std::vector<std::string>> kExpected = {
      {"left_behind_by = \"B\"", {"error", "failed foreign_run -9"}},
      {"left_behind_by = \"A\"", {"error", "failed rank_taken -9"}},
      {"processes = [" + two +
           ", { rank = 2 }, { rank = 0, run = \"B\" }, { rank = 1, run = \"B\" }, "
           "{ rank = 2, run = \"B\" }]",
       {"error"}},  // whichever comes first
      {"processes = [" + two + ", { rank = 2 }, { rank = 3 }]",
       {"error", "failed rank_out_of_range -9", "finished  -9"}},
      {"processes = [" + two + "]\ntimeout_ms = 50", {"error", "failed timed_out -9"}},
      {"processes = [" + two + ", { rank = 1 }]", {"error", "failed rank_taken -9"}},
      {"processes = [" + two + ", { rank = 2 }, { rank = 2 }]", {"error"}},  // who comes second
      {"processes = [" + two + ", { rank = 2, world_size = 5 }]",
       {"error", "failed world_sizes_differ -9"}},
      {"interface = \"eth0\"", {"error", "failed no_such_interface -9"}},
  };
  for (const auto& [launch, expected] : kExpected) {
    EXPECT_EQ(ends(predicted("[launch]\n" + launch + "\n")), expected) << launch;
  }
}

TEST(PredictBroken, LoopbackIsEnoughOnOneHost) {
  const auto launch = [](const std::string& hosts) {
    return script(
        "[launch]\nhosts = [{ name = \"a\", interfaces = { lo = \"127.0.0.1\", eth0 = "
        "\"10.0.0.1\" }, names = { a = \"127.0.0.1\" } }, { name = \"b\", interfaces = { lo = "
        "\"127.0.0.1\", eth0 = \"10.0.0.2\" }, names = { b = \"127.0.0.1\" } }]\n" +
        hosts);
  };
  const std::string apart =
      "processes = [{ rank = 0, host = \"a\" }, { rank = 1, host = \"b\" }, { rank = 2 }]\n";
  const ExpectSpec refused = predict_broken(launch(apart)).value_or(ExpectSpec());
  EXPECT_EQ(ends(refused), (std::vector<std::string>{"error", "failed loopback_address -9"}));
  EXPECT_FALSE(has_mistake(launch("")));
  for (const char* const interface : {"eth0", "^lo", "^docker,lo"}) {
    EXPECT_FALSE(has_mistake(launch(apart + "interface = \"" + interface + "\"\n")));
  }
}

TEST(PredictBroken, ARecomputedBlockThatIsUsedTwiceIsReadyTwice) {
  const std::string model =
      "model = { kind = \"graph\", blocks = { a = \"linear 3 4\", b = \"linear "
      "4 4 checkpoint_reentrant\", again = \"same b\", c = \"linear 4 2\" } }\n";
  const auto of = [&](const std::string& rest) {
    return test::only_case(
        "schema = 1\nexpect.outcome = \"equal\"\nexpect.oracles = [\"ranks\"]\ndata.samples = "
        "60\n" +
        rest + model);
  };
  EXPECT_THAT(ends(predict_broken(of("")).value()),
              ElementsAre("error", "failed ready_twice 0", "failed ready_twice 0"));
  EXPECT_FALSE(has_mistake(of("ddp.static_graph = true\n")));
}

TEST(PredictBroken, SaysNothingWhereNothingCanBeSeen) {
  for (const std::string& body :
       {fault("no_initial_broadcast"), fault("per_rank_init", "rank = 0\n"),
        fault("optimizer_not_loaded") + "[[at]]\nstep = 2\nreload = true\n",  // sgd has no state
        "data.samples = 7\n" + fault("mixed_steps", "step = 1\n"),            // padded
        "world.simulator_only = true\n" + fault("skip_wait"),
        fault("swap_collectives", "rank = 1\n"), fault("corrupt_payload", "bucket = 3\n"),
        std::string("[[at]]\nrank = 1\nlr = 0.1000001\n"),
        std::string("[[at]]\nrank = 1\nscale_buffers = 2\n")}) {
    EXPECT_FALSE(predict_broken(script(body)).has_value()) << body;
  }
}

TEST(BrokenScripts, AllKindsComeUpAndEndAsPredicted) {
  constexpr std::uint64_t kScripts = 300;
  const auto executor = make_sim_executor();
  std::map<std::string, int> counts;
  for (std::uint64_t index = 0; index < kScripts; ++index) {
    const Case value = draw_script(broken(), 5, index);
    EXPECT_TRUE(has_mistake(value));
    for (const std::string& name : names_in(value)) ++counts[name];
    JudgeOptions options;
    options.executor = options.simulator = executor.get();
    options.try_cures = !value.expect.cure.empty();
    const CaseResult result = judge_case({"", "", value}, options);
    EXPECT_TRUE(result.as_expected) << testing::PrintToString(result.complaints) << "\n"
                                    << result.internal_error << print_case(value);
  }
  for (std::uint64_t index = kScripts; index < 4 * kScripts; ++index) {
    for (const std::string& name : names_in(draw_script(broken(), 5, index))) ++counts[name];
  }
  std::vector<std::string> missing;
  for (const FaultKind& kind : kFaultKinds) {
    if (counts.count(kind.name) == 0) missing.emplace_back(kind.name);
  }
  EXPECT_THAT(missing, ElementsAre("skip_wait"));  // what it reads is a matter of time
  for (const char* const name : {"skip",
                                 "freeze",
                                 "unfreeze",
                                 "lr",
                                 "raise",
                                 "stall",
                                 "leave",
                                 "skip_step",
                                 "detach",
                                 "collective",
                                 "evaluate",
                                 "reload",
                                 "add_buffer",
                                 "bypass",
                                 "copy_gradients",
                                 "sync_buffers",
                                 "scale_buffers",
                                 "keep_gradients",
                                 "ascend",
                                 "uneven/off",
                                 "uneven/throw",
                                 "launch/foreign_run",
                                 "launch/rank_out_of_range",
                                 "launch/world_sizes_differ",
                                 "launch/rank_taken",
                                 "launch/timed_out",
                                 "launch/no_such_interface",
                                 "launch/loopback_address",
                                 "checks/unarmed_backward",
                                 "checks/buffer_changed_while_saved",
                                 "checks/parameter_replaced",
                                 "checks/replicas_differ"}) {
    EXPECT_GT(counts[name], 0) << name;
  }
}

}  // namespace
}  // namespace lockstep::harness::fuzz
