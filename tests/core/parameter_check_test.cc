// SPDX-License-Identifier: Apache-2.0
// Ranks with different models learn it, all of them.
#include "core/parameter_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "core/error.h"
#include "tests/support/run_ranks.h"

namespace lockstep::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Rank `odd_one` checks `different`, all others `same`; returns each rank's error.
std::vector<std::optional<DdpError>> check(std::int64_t odd_one,
                                           const std::vector<at::Tensor>& same,
                                           const std::vector<at::Tensor>& different) {
  const auto outcomes = try_run_ranks(3, [&](LocalCommunicator& communicator) {
    const auto& mine = communicator.rank() == odd_one ? different : same;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < mine.size(); ++i) {
      names.push_back("layer" + std::to_string(i) + ".weight");
    }
    verify_parameters(communicator, mine, names);
  });
  std::vector<std::optional<DdpError>> errors;
  for (const auto& outcome : outcomes) {
    errors.push_back(outcome.error_as<DdpError>());
  }
  return errors;
}

TEST(ParameterCheckTest, AcceptsEqualModels) {
  const std::vector<at::Tensor> model = {at::zeros({2, 3}), at::zeros({}), at::zeros({0, 4})};
  for (const auto& error : check(-1, model, {})) {
    EXPECT_FALSE(error.has_value());
  }
}

TEST(ParameterCheckTest, EveryRankLearnsOfADifferentCount) {
  for (const std::int64_t odd_one : {0, 1, 2}) {
    for (const auto& error : check(odd_one, {at::zeros({2}), at::zeros({2})}, {at::zeros({2})})) {
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->kind(), "model_mismatch");
      EXPECT_THAT(error->parameters(), IsEmpty());
    }
  }
}

struct Difference {
  const char* what;
  at::Tensor other;
  const char* message;
};

TEST(ParameterCheckTest, EveryRankLearnsWhichParameterDiffersAndHow) {
  const at::Tensor own = at::zeros({4, 6});
  const std::vector<Difference> differences = {
      {"size", at::zeros({4, 7}), "sizes [4, 7] strides [7, 1]"},
      {"strides", at::zeros({6, 4}).t(), "sizes [4, 6] strides [1, 4]"},
      {"dimensions", at::zeros({4, 6, 1}), "sizes [4, 6, 1] strides [6, 1, 1]"},
      {"dtype", at::zeros({4, 6}, at::kDouble), "Double sizes [4, 6]"}};
  for (const Difference& difference : differences) {
    for (const std::int64_t odd_one : {0, 2}) {
      SCOPED_TRACE(difference.what);
      std::vector<std::string> texts;
      for (const auto& error :
           check(odd_one, {at::zeros({3}), own}, {at::zeros({3}), difference.other})) {
        ASSERT_TRUE(error.has_value());
        EXPECT_EQ(error->kind(), "model_mismatch");
        EXPECT_THAT(error->parameters(), ElementsAre("layer1.weight"));
        EXPECT_THAT(error->what(), HasSubstr(difference.message));
        texts.emplace_back(error->what());
      }
      EXPECT_EQ(texts[0], texts[1]);
      EXPECT_EQ(texts[0], texts[2]);
    }
  }
}

}  // namespace
}  // namespace lockstep::test
