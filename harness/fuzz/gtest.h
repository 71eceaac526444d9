// SPDX-License-Identifier: Apache-2.0
// "These training scripts keep my DDP in lockstep" as an assertion of GoogleTest:
//
//   TEST(MySync, KeepsTrainingInLockstep) {
//     lockstep::harness::fuzz::OwnSubject mine;
//     mine.make_sync = [](const auto& parts) { return std::make_unique<MySync>(parts); };
//     EXPECT_TRUE(keeps_lockstep(mine));
//   }
//
// RC_PARAMS="seed=7 max_success=1000" draws others, and more of them.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "harness/fuzz/own_subject.h"

namespace lockstep::harness::fuzz {

inline ::testing::AssertionResult as_assertion(const OwnVerdict& verdict) {
  if (verdict.holds) {
    return ::testing::AssertionSuccess() << verdict.num_cases << " scripts were kept in lockstep";
  }
  return ::testing::AssertionFailure() << verdict.text;
}

/// Scripts that are drawn: see check_lockstep.
inline ::testing::AssertionResult keeps_lockstep(const OwnSubject& subject) {
  return as_assertion(check_lockstep(subject));
}

/// One scenario, given as a path or as text.
inline ::testing::AssertionResult keeps_lockstep(const OwnSubject& subject,
                                                 const std::string& scenario) {
  return as_assertion(check_lockstep(subject, scenario));
}

}  // namespace lockstep::harness::fuzz
