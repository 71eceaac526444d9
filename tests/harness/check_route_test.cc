// SPDX-License-Identifier: Apache-2.0
// What check_route finds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "harness/model.h"
#include "tests/harness/sample_models.h"

namespace lockstep::harness {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Route skip(std::vector<std::string> blocks) { return {std::move(blocks), "", {}, {}}; }

TEST(CheckRouteTest, AllowsWhatKeepsShapes) {
  const DataSpec data;
  EXPECT_THAT(check_route(branching(), data, {}), IsEmpty());
  EXPECT_THAT(check_route(branching(), data, skip({"left"})), IsEmpty());
  EXPECT_THAT(check_route(branching(), data, skip({"left", "right", "act"})), IsEmpty());
  EXPECT_THAT(check_route(branching(), data, skip({"vision"})), IsEmpty());
}

TEST(CheckRouteTest, NamesWhatDoesNotExistOrIsNeverUsed) {
  const ModelFinding unknown = only(check_route(branching(), DataSpec{}, skip({"visoin"})));
  EXPECT_EQ(unknown.key, "skip");
  EXPECT_THAT(unknown.message, HasSubstr("vision, text"));
  EXPECT_EQ(only(check_route(branching(), DataSpec{}, skip({"spare"}))).key, "skip");
  EXPECT_EQ(only(check_route(branching(), DataSpec{}, {{}, "spare", {}, {}})).key, "exit_after");
}

TEST(CheckRouteTest, RefusesShapesThatDoNotFitWithoutTheBlock) {
  const ModelFinding finding = only(check_route(branching(), DataSpec{}, skip({"trunk"})));
  EXPECT_EQ(finding.key, "skip");
  EXPECT_THAT(finding.message, HasSubstr("\"left\" does not fit"));
}

TEST(CheckRouteTest, RefusesToSkipEveryHead) {
  const ModelFinding finding = only(check_route(branching(), DataSpec{}, skip({"vision", "text"})));
  EXPECT_THAT(finding.message, HasSubstr("every head"));
}

TEST(CheckRouteTest, TheOnlyHeadMayBeSkippedWhereItsInputFitsTheTargets) {
  EXPECT_THAT(
      check_route(graph({{"a", "linear 4 3"}, {"b", "linear 3 3"}}), DataSpec{}, skip({"b"})),
      IsEmpty());
  EXPECT_THAT(
      only(check_route(graph({{"a", "linear 4 3"}, {"b", "linear 3 2"}}), DataSpec{}, skip({"b"})))
          .message,
      HasSubstr("would be [3], but the targets of head 0 are [2]"));
}

TEST(CheckRouteTest, AnEarlyExitYieldsHeadZeroSoMustHaveItsShape) {
  ModelSpec model = branching();
  const ModelFinding misfit = only(check_route(model, DataSpec{}, {{}, "left", {}, {}}));
  EXPECT_EQ(misfit.key, "exit_after");
  EXPECT_THAT(misfit.message, HasSubstr("would be [4], but the targets of head 0 are [3]"));
  model.blocks[4].second = "linear 4 4";
  EXPECT_THAT(check_route(model, DataSpec{}, {{}, "left", {}, {}}), IsEmpty());
  EXPECT_THAT(only(check_route(model, DataSpec{}, {{}, "text", {}, {}})).message,
              HasSubstr("last stage"));
}

}  // namespace
}  // namespace lockstep::harness
