// SPDX-License-Identifier: Apache-2.0
// The scenario that `lockstep new` writes.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "tests/harness/scenario_findings.h"

namespace lockstep::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ScenarioTemplateTest, IsValidAndCarriesItsTitle) {
  const std::string text = harness::scenario_template("my \"case\"");
  EXPECT_THAT(findings_of(text), IsEmpty());
  EXPECT_EQ(only_case(text).title, "my \"case\"");
}

TEST(ScenarioTemplateTest, IsValidWithEveryDisabledKeyEnabled) {
  std::istringstream lines(harness::scenario_template("x"));
  std::string enabled, line;
  int num_enabled = 0;
  while (std::getline(lines, line)) {
    const bool disabled = line.size() > 1 && line[0] == '#' && line[1] != ' ';
    if (disabled) ++num_enabled;
    enabled += line.substr(disabled ? 1 : 0) + "\n";
  }
  EXPECT_GT(num_enabled, 40);
  EXPECT_THAT(findings_of(enabled), IsEmpty()) << enabled;
  // Two axes and one linked pair: 2 * 5 * 2.
  EXPECT_EQ(harness::parse_scenario_text(enabled, "x").size(), 20U);
}

TEST(ScenarioTemplateTest, ShowsDefaultsAsTheyAre) {
  const std::string text = harness::scenario_template("x");
  const harness::Case defaults;
  EXPECT_THAT(
      text,
      HasSubstr("#bucket_cap_bytes = " + std::to_string(defaults.ddp.bucket_cap_bytes) + " "));
  EXPECT_THAT(text, HasSubstr("#policy = \"" + defaults.schedule.policy + "\"\n"));
}

TEST(ScenarioTemplateTest, TheExamplesOfTheReadmeAreValid) {
  std::ifstream readme(LOCKSTEP_SCENARIOS_DIR "/README.md");
  std::string example;
  int num_examples = 0;
  bool inside = false;
  for (std::string line; std::getline(readme, line);) {
    if (line == "```toml") {
      inside = true;
    } else if (inside && line == "```") {
      EXPECT_THAT(findings_of(example), IsEmpty()) << example;
      ++num_examples;
      inside = false;
      example.clear();
    } else if (inside) {
      example += line + "\n";
    }
  }
  EXPECT_EQ(num_examples, 2);
}

TEST(ScenarioTemplateTest, KeepsToAHundredColumns) {
  std::istringstream lines(harness::scenario_template("x"));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
}

}  // namespace
}  // namespace lockstep::test
