// SPDX-License-Identifier: Apache-2.0
// What a scenario text is rejected for, in a form that tests can compare.
#pragma once

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "harness/scenario.h"

namespace lockstep::test {

/// "line:column: message" of every finding; empty if the text is accepted.
inline std::vector<std::string> findings_of(const std::string& text) {
  std::vector<std::string> findings;
  try {
    harness::parse_scenario_text(text, "case.toml");
  } catch (const harness::ScenarioError& error) {
    for (const harness::Finding& finding : error.findings()) {
      EXPECT_EQ(finding.file, "case.toml");
      findings.push_back(std::to_string(finding.line) + ":" + std::to_string(finding.column) +
                         ": " + finding.message);
    }
  }
  return findings;
}

/// The only case of a text without axes.
inline harness::Case only_case(const std::string& text) {
  const std::vector<harness::NamedCase> cases = harness::parse_scenario_text(text, "case.toml");
  EXPECT_EQ(cases.size(), 1U);
  return cases.at(0).value;
}

/// A finding at "line:column" whose message contains all of `parts`.
inline ::testing::Matcher<std::string> finding(const std::string& where,
                                               const std::vector<std::string>& parts) {
  ::testing::Matcher<std::string> matcher = ::testing::StartsWith(where + ": ");
  for (const std::string& part : parts) {
    matcher = ::testing::AllOf(matcher, ::testing::HasSubstr(part));
  }
  return matcher;
}

}  // namespace lockstep::test
