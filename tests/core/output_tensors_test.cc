// SPDX-License-Identifier: Apache-2.0
// Tensors are found in whatever forward may return.
#include "core/output_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <array>
#include <list>
#include <map>
#include <unordered_map>

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Prediction {
  at::Tensor logits;
  std::vector<at::Tensor> boxes;
  double confidence = 0.0;
};

}  // namespace
}  // namespace lockstep::test

template <>
struct lockstep::OutputTensors<lockstep::test::Prediction> {
  static void collect(lockstep::test::Prediction& output, std::vector<at::Tensor*>& tensors) {
    collect_output_tensors(output.logits, tensors);
    collect_output_tensors(output.boxes, tensors);
  }
};

namespace lockstep::test {
namespace {

template <typename T>
std::vector<at::Tensor*> found(T& output) {
  std::vector<at::Tensor*> tensors;
  collect_output_tensors(output, tensors);
  return tensors;
}

TEST(OutputTensorsTest, ATensorIsItself) {
  at::Tensor output = at::zeros({1});
  EXPECT_THAT(found(output), ElementsAre(&output));
}

TEST(OutputTensorsTest, FindsTensorsInNestedTuples) {
  std::tuple<at::Tensor, std::tuple<at::Tensor, int>, std::pair<std::string, at::Tensor>> output;
  EXPECT_THAT(found(output), ElementsAre(&std::get<0>(output), &std::get<0>(std::get<1>(output)),
                                         &std::get<2>(output).second));
}

TEST(OutputTensorsTest, FindsTensorsInSequences) {
  std::vector<at::Tensor> vector(2);
  EXPECT_THAT(found(vector), ElementsAre(&vector[0], &vector[1]));
  std::array<at::Tensor, 2> array;
  EXPECT_THAT(found(array), ElementsAre(&array[0], &array[1]));
  std::list<at::Tensor> list(1);
  EXPECT_THAT(found(list), ElementsAre(&list.front()));
}

TEST(OutputTensorsTest, FindsTheValuesOfMaps) {
  std::map<std::string, at::Tensor> map = {{"a", at::Tensor()}, {"b", at::Tensor()}};
  EXPECT_THAT(found(map), ElementsAre(&map["a"], &map["b"]));
  std::unordered_map<int, std::vector<at::Tensor>> nested = {{7, {at::Tensor()}}};
  EXPECT_THAT(found(nested), ElementsAre(&nested[7][0]));
  torch::OrderedDict<std::string, at::Tensor> dict;
  dict.insert("x", at::zeros({1}));
  EXPECT_THAT(found(dict), ElementsAre(&dict["x"]));
}

TEST(OutputTensorsTest, LooksIntoOptionalsVariantsAndPointersThatHoldSomething) {
  std::optional<at::Tensor> optional;
  EXPECT_THAT(found(optional), IsEmpty());
  optional.emplace();
  EXPECT_THAT(found(optional), ElementsAre(&*optional));
  c10::optional<at::Tensor> torch_optional = at::zeros({1});
  EXPECT_THAT(found(torch_optional), ElementsAre(&*torch_optional));
  std::variant<int, at::Tensor> variant = 3;
  EXPECT_THAT(found(variant), IsEmpty());
  variant = at::zeros({1});
  EXPECT_THAT(found(variant), ElementsAre(&std::get<at::Tensor>(variant)));
  std::shared_ptr<at::Tensor> pointer;
  EXPECT_THAT(found(pointer), IsEmpty());
  pointer = std::make_shared<at::Tensor>();
  EXPECT_THAT(found(pointer), ElementsAre(pointer.get()));
  auto unique = std::make_unique<at::Tensor>();
  EXPECT_THAT(found(unique), ElementsAre(unique.get()));
}

TEST(OutputTensorsTest, NumbersStringsAndTheirRangesHoldNoTensors) {
  double number = 1.0;
  EXPECT_THAT(found(number), IsEmpty());
  std::string text = "text";
  EXPECT_THAT(found(text), IsEmpty());
  std::vector<bool> flags(3);
  EXPECT_THAT(found(flags), IsEmpty());
  std::map<std::string, double> metrics = {{"loss", 1.0}};
  EXPECT_THAT(found(metrics), IsEmpty());
}

TEST(OutputTensorsTest, AStructIsFoundThroughItsTrait) {
  Prediction output;
  output.boxes.resize(2);
  EXPECT_THAT(found(output), ElementsAre(&output.logits, &output.boxes[0], &output.boxes[1]));
  std::vector<Prediction> many(1);
  EXPECT_THAT(found(many), ElementsAre(&many[0].logits));
}

}  // namespace
}  // namespace lockstep::test
