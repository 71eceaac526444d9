// SPDX-License-Identifier: Apache-2.0
// Contradictions in training, optimizer, DDP options and exactness.
#include <gtest/gtest.h>

#include "tests/harness/scenario_findings.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string file_with(const std::string& body) {
  return "schema = 1\nexpect.outcome = \"within_bound\"\n" + body;
}

TEST(ScenarioRulesTest, MicroBatchesDivideTheBatch) {
  EXPECT_THAT(
      findings_of(file_with("[train]\nbatch_per_rank = 6\nmicro_batches = 4\n")),
      ElementsAre(finding("5:1", {"micro_batches = 4 does not divide batch_per_rank = 6"})));
  EXPECT_THAT(findings_of(file_with("[train]\nbatch_per_rank = 6\nmicro_batches = 3\n")),
              IsEmpty());
  // The default of batch_per_rank is 4; the key that is in the file is cited.
  EXPECT_THAT(findings_of(file_with("[train]\nmicro_batches = 3\n")),
              ElementsAre(finding("4:1", {"batch_per_rank = 4"})));
}

TEST(ScenarioRulesTest, LossAndTargetsFitEachOther) {
  EXPECT_THAT(findings_of(file_with("[train]\nloss = \"cross_entropy\"\n")),
              ElementsAre(finding("4:1", {"does not fit data.kind = \"regression\"",
                                          "loss = \"mse\" or \"dot\""})));
  EXPECT_THAT(findings_of(file_with("[data]\nkind = \"classification\"\n")),
              ElementsAre(finding("4:1", {"expected loss = \"cross_entropy\""})));
  EXPECT_THAT(findings_of(file_with("[data]\nkind = \"classification\"\n[train]\nloss = "
                                    "\"cross_entropy\"\n")),
              IsEmpty());
}

TEST(ScenarioRulesTest, EveryRankGetsAtLeastOneBatchAnEpoch) {
  // ceil(7 / 2) = 4 with padding, floor(7 / 2) = 3 without.
  EXPECT_THAT(findings_of(file_with("[data]\nsamples = 7\n")), IsEmpty());
  EXPECT_THAT(findings_of(file_with("[data]\nsamples = 7\ndrop_last = true\n")),
              ElementsAre(finding("4:1", {"2 ranks 3 an epoch", "expected at least 8 samples"})));
  EXPECT_THAT(findings_of(file_with("[data]\nsamples = 6\n")),
              ElementsAre(finding("4:1", {"expected at least 7 samples"})));
}

TEST(ScenarioRulesTest, OptionsBelongToTheirOptimizer) {
  EXPECT_THAT(
      findings_of(file_with("[train]\noptimizer = { kind = \"adam\", momentum = 0.5 }\n")),
      ElementsAre(finding("4:30", {"optimizer \"adam\" has no momentum", "sgd and rmsprop"})));
  EXPECT_THAT(findings_of(file_with("[train]\noptimizer = { kind = \"sgd\", eps = 0.5 }\n")),
              ElementsAre(finding("4:29", {"has no eps"})));
  EXPECT_THAT(
      findings_of(file_with("[train]\noptimizer = { kind = \"adagrad\", alpha = 0.5, amsgrad = "
                            "true, nesterov = true, dampening = 0.5, betas = [0.1, 0.2] }\n")),
      ElementsAre(finding("4:33", {"no alpha"}), finding("4:46", {"no amsgrad"}),
                  finding("4:62", {"no nesterov"}), finding("4:79", {"no dampening"}),
                  finding("4:96", {"no betas"})));
  EXPECT_THAT(
      findings_of(file_with("[train]\noptimizer = { kind = \"rmsprop\", lr_decay = 0.5 }\n")),
      ElementsAre(finding("4:33", {"no lr_decay", "adagrad"})));
}

TEST(ScenarioRulesTest, NesterovNeedsMomentum) {
  EXPECT_THAT(findings_of(file_with("[train.optimizer]\nnesterov = true\n")),
              ElementsAre(finding("4:1", {"nesterov needs momentum above 0"})));
  EXPECT_THAT(findings_of(file_with("[train.optimizer]\nnesterov = true\nmomentum = 0.5\n")),
              IsEmpty());
  EXPECT_THAT(findings_of(file_with("[train.optimizer]\nnesterov = true\nmomentum = 0.5\n"
                                    "dampening = 0.5\n")),
              ElementsAre(finding("4:1", {"dampening = 0.5"})));
}

TEST(ScenarioRulesTest, ForwardsDivideTheMicroBatch) {
  EXPECT_THAT(findings_of(file_with("[train]\nforwards_per_backward = 3\n")),
              ElementsAre(finding("4:1", {"does not divide the 4 samples"})));
  EXPECT_THAT(findings_of(file_with("[train]\nbackward_from = \"each\"\n")),
              ElementsAre(finding("4:1", {"train.forwards_per_backward above 1"})));
}

/// A graph of two blocks and `body` behind it, from line 6 on.
std::string blocks_with(const std::string& first, const std::string& second,
                        const std::string& body) {
  return file_with("[model]\nkind = \"graph\"\nblocks = { a = \"" + first + "\", b = \"" + second +
                   "\" }\n" + body);
}

TEST(ScenarioRulesTest, SparseGradientsNeedSomebodyWhoTakesThem) {
  const auto with = [](const std::string& body) {
    return blocks_with("embedding 8 4 sparse", "linear 4 2", body);
  };
  EXPECT_THAT(findings_of(with("")), IsEmpty());
  EXPECT_THAT(findings_of(with("train.optimizer.kind = \"adam\"\n")).size(), 1U);
  EXPECT_THAT(findings_of(with("[train.optimizer]\nkind = \"adam\"\n")),
              ElementsAre(finding("7:1", {"takes no sparse gradients", "sgd or adagrad"})));
  EXPECT_THAT(findings_of(with("[train.optimizer]\nweight_decay = 0.5\n")),
              ElementsAre(finding("7:1", {"would make the sparse gradient of a.weight dense"})));
  EXPECT_THAT(findings_of(with("[ddp]\nsync = \"flat\"\n")),
              ElementsAre(finding("7:1", {"reduces no sparse gradients"})));
}

TEST(ScenarioRulesTest, ComplexAndWideBlocksHaveTheirTerms) {
  EXPECT_THAT(findings_of(blocks_with("linear 4 2 complex64", "linear 4 2",
                                      "[train.optimizer]\nkind = \"adam\"\n")),
              ElementsAre(finding("7:1", {"complex a.weight", "expected sgd"})));
  EXPECT_THAT(findings_of(blocks_with("linear 4 2 complex64", "linear 2 2", "")),
              ElementsAre(finding("5:40", {"takes a last dimension of 2, but gets [4]"})));
  EXPECT_THAT(findings_of(file_with("[model]\nkind = \"graph\"\ndtype = \"float64\"\n"
                                    "blocks = { a = \"linear 4 2 float64\" }\n")),
              ElementsAre(finding("6:12", {"stands beside float32"})));
  EXPECT_THAT(findings_of(file_with("[model]\nkind = \"graph\"\ntied = [[\"a.weight\", "
                                    "\"b.weight\"]]\nblocks = { a = \"linear 4 4\", b = \"linear 4 "
                                    "4 float64\" }\n")),
              ElementsAre(finding("5:1", {"tied parameters have one dtype"})));
}

TEST(ScenarioRulesTest, CheckpointsAndSyncBatchNormHaveTheirPlaces) {
  EXPECT_THAT(findings_of(blocks_with("linear 4 4 checkpoint_reentrant", "linear 4 2", "")),
              ElementsAre(finding("5:12", {"needs an input that requires a gradient"})));
  // The serial oracle is another finding.
  EXPECT_THAT(findings_of(blocks_with("sync_batch_norm 4", "dropout 0.5", "")),
              ::testing::Contains(::testing::HasSubstr("leave one of them out")));
}

TEST(ScenarioRulesTest, UnevenInputsAreGivenForEachRankUpToTheNumberOfSteps) {
  EXPECT_THAT(findings_of(file_with("[train]\nsteps_of_rank = [3, 1]\n")), IsEmpty());
  EXPECT_THAT(findings_of(file_with("[train]\nsteps_of_rank = [3]\n")),
              ElementsAre(finding("4:1", {"has 1 entries", "each of 2 ranks"})));
  for (const std::string steps : {"[1, 2]", "[4, 3]"}) {
    EXPECT_THAT(findings_of(file_with("[train]\nsteps_of_rank = " + steps + "\n")),
                ElementsAre(finding("4:1", {"the most in steps_of_rank", "but steps = 3"})));
  }
}

TEST(ScenarioRulesTest, HooksAndJoinNeedASyncThatHasThem) {
  EXPECT_THAT(findings_of(file_with("[ddp]\nsync = \"flat\"\njoin = \"throw\"\n")),
              ElementsAre(finding("5:1", {"\"flat\" has no join"})));
  EXPECT_THAT(findings_of(file_with("[ddp]\nsync = \"none\"\nhook = \"all_reduce\"\n")),
              ElementsAre(finding("5:1", {"\"none\" has no hook \"all_reduce\""})));
#ifdef LOCKSTEP_WITH_TORCH_REDUCER
  EXPECT_THAT(findings_of(file_with("[ddp]\nsync = \"torch\"\njoin = \"throw\"\n"
                                    "hook = \"all_reduce\"\n")),
              IsEmpty());
  EXPECT_THAT(findings_of("schema = 1\n[ddp]\nsync = \"torch\"\nhook = \"bf16_compress\"\n"
                          "[expect]\noracles = [\"ranks\", \"replay\"]\n"),
              ElementsAre(finding("4:1", {"all_reduce and fp16_compress"})));
#endif
}

TEST(ScenarioRulesTest, WhatNoReferenceFollowsIsNotPromised) {
  EXPECT_THAT(findings_of("schema = 1\n[train]\nzero_grad = \"never\"\nsteps_of_rank = [3, 1]\n"
                          "[ddp]\njoin = \"divide_by_active\"\n"
                          "[expect]\noutcome = \"within_bound\"\n"),
              ElementsAre(::testing::HasSubstr("never zeroed inside join")));
}

TEST(ScenarioRulesTest, FaultsDoNotMakeUpWhatRanksDecideBy) {
  for (const std::string kind : {"skip_collective", "corrupt_payload"}) {
    EXPECT_THAT(findings_of(file_with("[[fault]]\nkind = \"" + kind + "\"\nsite = \"checks\"\n")),
                ElementsAre(::testing::HasSubstr("expected one of bucket, used_map")));
  }
}

// The first step in which three ranks have inputs, in a million; and in each of 200 cases.
TEST(ScenarioRulesTest, ActiveRanksAreAPowerOfTwoInEveryStepOfManySteps) {
  const auto file = [](const std::string& steps_of_rank) {
    return "schema = 1\n[world]\nranks = 4\n[data]\nexact = true\n[train]\nsteps = 1_000_000\n"
           "optimizer.lr = 0.125\nsteps_of_rank = [" +
           steps_of_rank + "]\n[ddp]\njoin = \"divide_by_active\"\n[vary]\n" +
           "seed = { first = 1, count = 200 }\n";
  };
  EXPECT_THAT(findings_of(file("1_000_000, 1_000_000, 0, 0")), IsEmpty());
  EXPECT_THAT(findings_of(file("1_000_000, 999_999, 999_999, 999_998")),
              ElementsAre(finding("9:1", {"ranks with inputs in step 999998 is 3"})));
  EXPECT_THAT(findings_of(file("1_000_000, 7, 7, 0")),
              ElementsAre(finding("9:1", {"ranks with inputs in step 0 is 3"})));
}

TEST(ScenarioRulesTest, StaticGraphExcludesFindUnusedParameters) {
  EXPECT_THAT(findings_of(file_with("[ddp]\nfind_unused_parameters = true\nstatic_graph = true\n")),
              ElementsAre(finding("5:1", {"leave out find_unused_parameters or static_graph"})));
}

TEST(ScenarioRulesTest, FindingsOfTheModelAreCitedAtTheirKey) {
  EXPECT_THAT(findings_of(file_with("[model]\nkind = \"graph\"\n"
                                    "blocks = { a = \"linear 4 4\", b = \"lineer 4 4\" }\n")),
              ElementsAre(finding("5:30", {"model.blocks.b"})));
  EXPECT_THAT(findings_of(file_with("[model]\nfrozen = [\"layer9\"]\n")),
              ElementsAre(finding("4:1", {"model.frozen"})));
}

/// A file whose case is exact, with `body` from line 6 on.
std::string exact_with(const std::string& body) {
  return "schema = 1\nexpect.outcome = \"equal\"\ndata.exact = true\n"
         "train.optimizer.lr = 0.125\nmodel.widths = [8, 8, 4]\n" +
         body;
}

TEST(ScenarioRulesTest, ExactCasesDivideByPowersOfTwoOnly) {
  EXPECT_THAT(findings_of(exact_with("world.ranks = 4\n")), IsEmpty());
  EXPECT_THAT(findings_of(exact_with("world.ranks = 3\n")),
              ElementsAre(finding("6:7", {"data.exact = true, but world.ranks is 3",
                                          "a power of two or leave out data.exact"})));
  EXPECT_THAT(findings_of(exact_with("train.batch_per_rank = 3\n")),
              ElementsAre(finding("6:7", {"samples in a micro-batch is 3"})));
  EXPECT_THAT(findings_of(exact_with("train.batch_per_rank = 6\ntrain.micro_batches = 3\n")),
              ElementsAre(finding("7:7", {"train.micro_batches is 3"})));
  EXPECT_THAT(findings_of("schema = 1\ndata.exact = true\ntrain.optimizer.lr = 0.5\n"
                          "model.widths = [8, 3]\n"),
              ElementsAre(finding("4:7", {"the mean is taken over is 3"})));
  // With the other divisor it is the number of ranks that still have inputs.
  const std::string uneven = "world.ranks = 4\ntrain.steps_of_rank = [3, 1, 3, 3]\n";
  EXPECT_THAT(findings_of(exact_with(uneven + "ddp.join = \"divide_by_initial\"\n")), IsEmpty());
  EXPECT_THAT(findings_of(exact_with(uneven + "ddp.join = \"divide_by_active\"\n")),
              ElementsAre(finding("7:7", {"the number of ranks with inputs in step 1 is 3"})));
  // A sum divides by nothing but the number of ranks.
  EXPECT_THAT(findings_of(exact_with("train.batch_per_rank = 3\ntrain.reduction = \"sum\"\n")),
              IsEmpty());
}

TEST(ScenarioRulesTest, ExactCasesUseExactOperationsOnly) {
  EXPECT_THAT(findings_of(exact_with("model.activation = \"tanh\"\n")),
              ElementsAre(finding("6:7", {"tanh"})));
  EXPECT_THAT(findings_of(exact_with("train.optimizer.kind = \"adam\"\n")),
              ElementsAre(finding("6:17", {"adam takes square roots"})));
  EXPECT_THAT(findings_of(exact_with("train.clip_norm = 1.0\n")),
              ElementsAre(finding("6:7", {"square root"})));
  EXPECT_THAT(findings_of("schema = 1\ndata.exact = true\nmodel.kind = \"graph\"\n"
                          "train.optimizer.lr = 0.5\nexpect.oracles = [\"ranks\", \"replay\"]\n"
                          "[model.blocks]\na = \"linear 4 4\"\nb = \"batch_norm 4\"\n"),
              ElementsAre(finding("8:1", {"batch_norm", "never exact"})));
}

TEST(ScenarioRulesTest, ExactCasesUseNumbersOfFewBits) {
  // 0.1 has no finite binary expansion; 0.375 = 1/4 + 1/8 has two bits.
  EXPECT_THAT(findings_of("schema = 1\ndata.exact = true\ntrain.optimizer.lr = 0.1\n"),
              ElementsAre(finding("3:17", {"train.optimizer.lr = 0.1", "such as 0.125"})));
  EXPECT_THAT(findings_of("schema = 1\ndata.exact = true\ntrain.optimizer.lr = 0.375\n"),
              IsEmpty());
  EXPECT_THAT(findings_of(exact_with("[[at]]\nlr = 0.3\n")),
              ElementsAre(finding("7:1", {"at.0.lr = 0.3"})));
  // 255/256 has eight bits, 511/512 nine.
  EXPECT_THAT(findings_of(exact_with("train.optimizer.momentum = 0.99609375\n")), IsEmpty());
  EXPECT_THAT(findings_of(exact_with("train.optimizer.momentum = 0.998046875\n")),
              ElementsAre(finding("6:17", {"more than 8 significant bits"})));
}

}  // namespace
}  // namespace lockstep::test
