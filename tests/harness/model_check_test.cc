// SPDX-License-Identifier: Apache-2.0
// What check_model finds, and what is known of a model without building it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "harness/block_spec.h"
#include "harness/model.h"
#include "tests/harness/sample_models.h"

namespace lockstep::harness {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(BlockSpecTest, ReadsEveryKind) {
  const BlockSpec linear = parse_block("linear 4 8 no_bias").spec;
  EXPECT_EQ(linear.kind, BlockKind::kLinear);
  EXPECT_EQ(linear.in, 4);
  EXPECT_EQ(linear.out, 8);
  EXPECT_FALSE(linear.bias);
  const BlockSpec conv2d = parse_block("  conv2d 1 4   3 ").spec;
  EXPECT_EQ(conv2d.kernel, 3);
  EXPECT_TRUE(conv2d.bias);
  EXPECT_EQ(parse_block("dropout 0.25").spec.rate, 0.25);
  EXPECT_EQ(parse_block("same trunk").spec.same, "trunk");
  for (const char* text : {"relu", "tanh", "identity", "batch_norm 8", "layer_norm 8",
                           "embedding 16 4", "flatten", "scale 4", "linear 1 1"}) {
    EXPECT_EQ(parse_block(text).error, "") << text;
  }
}

TEST(BlockSpecTest, ReadsOptionsInAnyOrder) {
  const BlockSpec linear = parse_block("linear 4 8 checkpoint no_bias complex64").spec;
  EXPECT_EQ(linear.checkpoint, Checkpointing::kPlain);
  EXPECT_FALSE(linear.bias);
  EXPECT_EQ(linear.dtype, "complex64");
  const BlockSpec embedding = parse_block("embedding 16 4 sparse float64").spec;
  EXPECT_TRUE(embedding.sparse);
  EXPECT_EQ(embedding.dtype, "float64");
  EXPECT_EQ(parse_block("dropout 0.5 checkpoint_reentrant").spec.checkpoint,
            Checkpointing::kReentrant);
  EXPECT_EQ(parse_block("same checkpoint").spec.same, "checkpoint");  // a block may be called so
}

TEST(BlockSpecTest, RefusesOptionsThatDoNotFit) {
  EXPECT_THAT(parse_block("linear 4 8 sparse").error, HasSubstr("\"sparse\" is for embedding"));
  EXPECT_THAT(parse_block("relu float64").error, HasSubstr("kinds with parameters"));
  EXPECT_THAT(parse_block("conv2d 1 4 3 complex64").error, HasSubstr("is for linear"));
  EXPECT_THAT(parse_block("sync_batch_norm 4 checkpoint").error, HasSubstr("every kind but"));
  EXPECT_THAT(parse_block("same a checkpoint").error, HasSubstr("every kind but"));
  EXPECT_THAT(parse_block("linear 4 8 no_bias no_bias").error, HasSubstr("says again"));
  EXPECT_THAT(parse_block("linear 4 8 float64 complex64").error, HasSubstr("says again"));
  EXPECT_THAT(parse_block("linear 4 8 checkpoint checkpoint_reentrant").error,
              HasSubstr("says again"));
}

TEST(BlockSpecTest, SaysHowAMisspeltBlockIsWritten) {
  EXPECT_THAT(parse_block("linear 4").error, HasSubstr("linear 4 8"));
  EXPECT_THAT(parse_block("linear 0 4").error, HasSubstr("not a size"));
  EXPECT_THAT(parse_block("linear 4 8.5").error, HasSubstr("not a size"));
  EXPECT_THAT(parse_block("linear 4 9999999999999999999999").error, HasSubstr("not a size"));
  EXPECT_THAT(parse_block("conv2d 1 1 65").error, HasSubstr("from 1 to 64"));
  EXPECT_THAT(parse_block("dropout 1").error, HasSubstr("probability"));
  EXPECT_THAT(parse_block("dropout nan").error, HasSubstr("probability"));
  EXPECT_THAT(parse_block("relu 3").error, HasSubstr("instead of 0"));
  EXPECT_THAT(parse_block("batch_norm 8 no_bias").error, HasSubstr("batch_norm 8"));
  EXPECT_THAT(parse_block("").error, HasSubstr("linear, relu"));
  EXPECT_THAT(parse_block("lineer 4 8").error, HasSubstr("kind of block"));
}

TEST(CheckModelTest, FindsNothingInSoundModels) {
  EXPECT_THAT(check_model(ModelSpec{}, DataSpec{}), IsEmpty());
  EXPECT_THAT(check_model(branching(), DataSpec{}), IsEmpty());
  EXPECT_THAT(
      check_model(
          graph({{"table", "embedding 16 4"}, {"norm", "layer_norm 4"}, {"out", "linear 4 16"}}),
          DataSpec{}),
      IsEmpty());
  EXPECT_THAT(check_model(graph({{"conv", "conv2d 1 4 3"},
                                 {"norm", "batch_norm 4"},
                                 {"flat", "flatten"},
                                 {"out", "linear 64 2"}}),
                          DataSpec{}),
              IsEmpty());
}

struct Mistake {
  std::string name;
  std::function<void(ModelSpec&, DataSpec&)> make;
  std::string key;
  std::string message;
};

class CheckModelMistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(CheckModelMistakes, IsTheOnlyFindingUnderItsKey) {
  ModelSpec model = branching();
  DataSpec data;
  GetParam().make(model, data);
  const ModelFinding finding = only(check_model(model, data));
  EXPECT_EQ(finding.key, GetParam().key);
  EXPECT_THAT(finding.message, HasSubstr(GetParam().message));
}

std::vector<Mistake> mistakes() {
  return {
      {"Kind", [](ModelSpec& m, DataSpec&) { m = ModelSpec{}, m.kind = "cnn"; }, "model.kind",
       "\"cnn\""},
      {"MlpWithBlocks", [](ModelSpec& m, DataSpec&) { m.kind = "mlp"; }, "model.kind", "graph"},
      {"OneWidth", [](ModelSpec& m, DataSpec&) { m = ModelSpec{}, m.widths = {8}; }, "model.widths",
       "at least"},
      {"ZeroWidth",
       [](ModelSpec& m, DataSpec&) {
         m = ModelSpec{}, m.widths = {8, 0};
       },
       "model.widths", "\"0\""},
      {"HugeWidths",
       [](ModelSpec& m, DataSpec&) {
         m = ModelSpec{}, m.widths = {9000, 9000};
       },
       "model.widths", "81009000"},
      {"Activation", [](ModelSpec& m, DataSpec&) { m = ModelSpec{}, m.activation = "flatten"; },
       "model.activation", "relu"},
      {"Dtype", [](ModelSpec& m, DataSpec&) { m.dtype = "float16"; }, "model.dtype", "float64"},
      {"BlockText", [](ModelSpec& m, DataSpec&) { m.blocks[0].second = "linear 6"; },
       "model.blocks.trunk", "linear 4 8"},
      {"BlockName", [](ModelSpec& m, DataSpec&) { m.blocks.emplace_back("a.b", "relu"); },
       "model.blocks.a.b", "letters"},
      {"BlockTwice", [](ModelSpec& m, DataSpec&) { m.blocks.emplace_back("act", "relu"); },
       "model.blocks.act", "already"},
      {"SameOfALaterBlock",
       [](ModelSpec& m, DataSpec&) {
         m.blocks.insert(m.blocks.begin(), {"x", "same left"});
       },
       "model.blocks.x", "earlier"},
      {"UnknownStageBlock",
       [](ModelSpec& m, DataSpec&) {
         m.forward[2] = {"act", "relu"};
       },
       "model.forward", "no block \"relu\""},
      {"StageBlockTwice",
       [](ModelSpec& m, DataSpec&) { m.forward.insert(m.forward.begin() + 2, {{"left"}}); },
       "model.forward", "same left"},
      {"EmptyStage", [](ModelSpec& m, DataSpec&) { m.forward.insert(m.forward.begin(), {{}}); },
       "model.forward", "at least one"},
      {"ShapesDoNotFit", [](ModelSpec& m, DataSpec&) { m.blocks[4].second = "linear 5 3"; },
       "model.blocks.vision", "last dimension of 5, but gets [4]"},
      {"BranchesDoNotAddUp", [](ModelSpec& m, DataSpec&) { m.blocks[2].second = "linear 4 5"; },
       "model.blocks.right", "[5], but is added to [4]"},
      {"NoBlockWithASize", [](ModelSpec& m, DataSpec&) { m.forward = {{"act"}}; }, "model.forward",
       "size"},
      {"NoParameters",
       [](ModelSpec& m, DataSpec&) {
         m = graph({{"act", "relu"}});
       },
       "model.blocks", "no parameters"},
      {"EmbeddingInside",
       [](ModelSpec& m, DataSpec&) {
         m = graph({{"a", "linear 4 4"}, {"b", "embedding 4 4"}});
       },
       "model.blocks.b", "comes first"},
      {"TokensIntoALinear",
       [](ModelSpec& m, DataSpec&) {
         m = graph({{"a", "linear 4 4"}, {"b", "embedding 4 4"}});
         m.forward = {{"b", "a"}};
       },
       "model.blocks.a", "real numbers"},
      {"BatchNormOfTokens",
       [](ModelSpec& m, DataSpec&) {
         m = graph({{"a", "embedding 4 4"}, {"b", "batch_norm 4"}});
       },
       "model.blocks.b", "[4, height, width]"},
      {"KernelTooLarge",
       [](ModelSpec& m, DataSpec&) {
         m = graph({{"a", "conv2d 1 1 7"}});
       },
       "model.blocks.a", "at least 7"},
      {"FrozenUnknown", [](ModelSpec& m, DataSpec&) { m.frozen = {"trunk.wait"}; }, "model.frozen",
       "trunk.weight"},
      {"FrozenWithoutParameters", [](ModelSpec& m, DataSpec&) { m.frozen = {"act"}; },
       "model.frozen", "no parameters"},
      {"TieOfOne", [](ModelSpec& m, DataSpec&) { m.tied = {{"trunk.weight"}}; }, "model.tied",
       "two parameters"},
      {"TieOfABlock",
       [](ModelSpec& m, DataSpec&) {
         m.tied = {{"trunk.weight", "text"}};
       },
       "model.tied", "no parameter \"text\""},
      {"TieOfShapes",
       [](ModelSpec& m, DataSpec&) {
         m.tied = {{"trunk.weight", "left.weight"}};
       },
       "model.tied", "[4, 6]"},
      {"TieOfOneTensor",
       [](ModelSpec& m, DataSpec&) {
         m.tied = {{"left.weight", "right.weight"}};
       },
       "model.tied", "one tensor already"},
      {"DataKind", [](ModelSpec&, DataSpec& d) { d.kind = "text"; }, "data.kind", "regression"},
      {"NoSamples", [](ModelSpec&, DataSpec& d) { d.samples = 0; }, "data.samples", "from 1"},
      {"NoTokens", [](ModelSpec&, DataSpec& d) { d.sequence_tokens = -1; }, "data.sequence_tokens",
       "from 1"},
      {"NoPixels", [](ModelSpec&, DataSpec& d) { d.image_pixels = 1 << 20; }, "data.image_pixels",
       "from 1"},
      {"TooMuchData",
       [](ModelSpec& m, DataSpec& d) {
         m = ModelSpec{}, m.widths = {1024, 1}, d.samples = 1 << 20;
       },
       "data.samples", "1025 numbers"},
      {"OneClass",
       [](ModelSpec& m, DataSpec& d) {
         m = ModelSpec{}, m.widths = {4, 1}, d.kind = "classification";
       },
       "data.kind", "at least 2 classes"},
      {"ExactTanh",
       [](ModelSpec& m, DataSpec& d) { m = ModelSpec{}, m.activation = "tanh", d.exact = true; },
       "model.activation", "never exact"},
      {"ExactDropout",
       [](ModelSpec& m, DataSpec& d) { m.blocks[3].second = "dropout 0.25", d.exact = true; },
       "model.blocks.act", "power of two"},
      {"ExactClassification",
       [](ModelSpec&, DataSpec& d) { d.kind = "classification", d.exact = true; }, "data.exact",
       "logarithms"},
  };
}

INSTANTIATE_TEST_SUITE_P(All, CheckModelMistakes, ::testing::ValuesIn(mistakes()),
                         [](const auto& tested) { return tested.param.name; });

TEST(CheckModelTest, ReportsAllMistakesAtOnce) {
  ModelSpec model = branching();
  model.dtype = "half";
  model.frozen = {"nothing"};
  model.blocks[0].second = "linear";
  EXPECT_EQ(check_model(model, DataSpec{}).size(), 3U);
}

TEST(CheckModelTest, AnInexactBlockThatNoStageNamesDoesNotMatter) {
  ModelSpec model = branching();
  model.blocks.emplace_back("unused", "tanh");
  DataSpec data;
  data.exact = true;
  EXPECT_THAT(check_model(model, data), IsEmpty());
}

TEST(ModelNamesTest, FollowTheOrderOfRegistration) {
  EXPECT_THAT(block_names(ModelSpec{}), ElementsAre("layer0", "act0", "layer1"));
  EXPECT_THAT(parameter_names(ModelSpec{}),
              ElementsAre("layer0.weight", "layer0.bias", "layer1.weight", "layer1.bias"));
  EXPECT_THAT(parameter_names(branching()),
              ElementsAre("trunk.weight", "trunk.bias", "left.weight", "left.bias", "vision.weight",
                          "vision.bias", "text.weight", "spare.weight", "spare.bias"));
  EXPECT_THAT(buffer_names(graph({{"a", "batch_norm 4"}, {"b", "same a"}, {"c", "batch_norm 4"}})),
              ElementsAre("a.running_mean", "a.running_var", "a.num_batches_tracked",
                          "c.running_mean", "c.running_var", "c.num_batches_tracked"));
}

TEST(ModelNamesTest, ATiedParameterAppearsUnderItsFirstNameWhicheverIsTiedToWhich) {
  ModelSpec model = graph({{"table", "embedding 16 4"}, {"out", "linear 4 16"}});
  for (const auto& pair : {std::vector<std::string>{"table.weight", "out.weight"},
                           std::vector<std::string>{"out.weight", "table.weight"}}) {
    model.tied = {pair};
    EXPECT_THAT(parameter_names(model), ElementsAre("table.weight", "out.bias"));
  }
}

TEST(ModelNamesTest, ParametersOfResolvesBlocksAliasesAndTies) {
  ModelSpec model = branching();
  EXPECT_THAT(parameters_of(model, "right"), ElementsAre("left.weight", "left.bias"));
  EXPECT_THAT(parameters_of(model, "right.bias"), ElementsAre("left.bias"));
  EXPECT_THAT(parameters_of(model, "act"), IsEmpty());
  EXPECT_THAT(parameters_of(model, "wrong"), IsEmpty());
  model.tied = {{"left.bias", "trunk.bias"}};
  EXPECT_THAT(parameters_of(model, "left"), ElementsAre("left.weight", "trunk.bias"));
}

TEST(ModelNamesTest, RefuseAnUnsoundModel) {
  ModelSpec model;
  model.widths = {};
  EXPECT_THROW(parameter_names(model), UsageError);
}

TEST(ModelShapesTest, FollowTheBlocks) {
  DataSpec data;
  EXPECT_THAT(output_shapes(branching(), data), ElementsAre(ElementsAre(3), ElementsAre(2)));
  const InputShape features = input_shape(branching(), data);
  EXPECT_EQ(features.kind, InputKind::kFeatures);
  EXPECT_THAT(features.sizes, ElementsAre(6));

  data.sequence_tokens = 5;
  const ModelSpec tokens = graph({{"table", "embedding 16 4"}, {"out", "linear 4 7"}});
  EXPECT_EQ(input_shape(tokens, data).vocabulary, 16);
  EXPECT_THAT(input_shape(tokens, data).sizes, ElementsAre(5));
  EXPECT_THAT(output_shapes(tokens, data), ElementsAre(ElementsAre(5, 7)));

  data.image_pixels = 8;
  // 8 - 3 + 1 = 6 pixels a side.
  const ModelSpec image = graph({{"act", "relu"}, {"conv", "conv2d 2 4 3"}, {"flat", "flatten"}});
  EXPECT_THAT(input_shape(image, data).sizes, ElementsAre(2, 8, 8));
  EXPECT_THAT(output_shapes(image, data), ElementsAre(ElementsAre(4 * 6 * 6)));
}

TEST(ModelUsesTest, CountsOnlyBlocksThatRunAndDropSomething) {
  ModelSpec model = branching();
  EXPECT_FALSE(uses_dropout(model));
  EXPECT_FALSE(uses_batch_norm(model));
  model.blocks.emplace_back("drop", "dropout 0.5");
  model.blocks.emplace_back("norm", "batch_norm 4");
  EXPECT_FALSE(uses_dropout(model));
  EXPECT_FALSE(uses_batch_norm(model));
  model.forward.insert(model.forward.begin() + 1, {{"drop"}, {"norm"}});
  EXPECT_TRUE(uses_dropout(model));
  EXPECT_TRUE(uses_batch_norm(model));
  model.blocks[7].second = "dropout 0";
  EXPECT_FALSE(uses_dropout(model));
}

TEST(ModelCheckTest, WhereTheModelHasNothingItSaysSo) {
  ModelSpec model = graph({});
  model.forward = {{"a"}};
  model.frozen = {"a"};
  std::vector<std::string> messages;
  for (const ModelFinding& finding : check_model(model, DataSpec())) {
    messages.push_back(finding.message);
  }
  EXPECT_THAT(messages, ElementsAre(HasSubstr("needs at least one block"),
                                    HasSubstr("no block \"a\"; the model has no blocks yet"),
                                    HasSubstr("\"a\"; the model has no parameters")));
}

TEST(ModelCheckTest, ElementsOfManyBlocksDoNotOverflow) {
  std::vector<std::pair<std::string, std::string>> blocks;
  for (int i = 0; i < 3'000; ++i) {
    blocks.emplace_back("b" + std::to_string(i), "conv2d 1048576 1048576 64");
  }
  EXPECT_THAT(only(check_model(graph(std::move(blocks)), DataSpec())).message,
              HasSubstr("are more than the 67108864"));
}

}  // namespace
}  // namespace lockstep::harness
