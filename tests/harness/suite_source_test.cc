// SPDX-License-Identifier: Apache-2.0
// Suites whose cases come one by one, and that run more than once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "harness/scenario.h"
#include "harness/suite.h"
#include "tests/harness/suite_cases.h"

namespace lockstep::test {

using namespace harness;
using ::testing::ElementsAre;

namespace {

/// Gives cases one by one, the next only when the result of the one before has been passed on.
class OneAfterTheOther : public CaseSource {
 public:
  explicit OneAfterTheOther(std::int64_t count) : cases_(numbered_cases(count)) {}

  std::optional<NamedCase> next() override {
    if (num_given != num_done || num_given == cases_.size()) return std::nullopt;
    return cases_[num_given++];
  }

  std::size_t num_given = 0, num_done = 0;

 private:
  const std::vector<NamedCase> cases_;
};

}  // namespace

TEST(SuiteSourceTest, ASourceMayWaitForResults) {
  OneAfterTheOther source(9);
  Suite suite(jobs(3), as_expected);
  SuiteEvents events;
  events.case_done = [&](const CaseResult&) { ++source.num_done; };
  const SuiteSummary summary = suite.run(source, events);
  EXPECT_EQ(source.num_done, 9U);
  EXPECT_EQ(summary.num_cases, 9);
  EXPECT_EQ(summary.passed, 9);
}

TEST(SuiteSourceTest, ProcessesLiveFromOneRunToTheNext) {
  const JudgeFunction judge = [](const NamedCase& named) {
    CaseResult result = as_expected(named);
    result.trace_hash = static_cast<std::uint64_t>(getpid());
    return result;
  };
  Suite suite(jobs(1), judge);
  const std::vector<NamedCase> cases = numbered_cases(2);
  std::vector<std::uint64_t> pids;
  SuiteEvents events;
  events.case_done = [&](const CaseResult& result) { pids.push_back(result.trace_hash); };
  for (int i = 0; i < 2; ++i) {
    ListedCases source(cases);
    suite.run(source, events);
  }
  EXPECT_THAT(pids, ElementsAre(pids[0], pids[0], pids[0], pids[0]));
}

TEST(SuiteSourceTest, ARunEndsBehindTheFirstResultInOrderThatEndsIt) {
  for (const std::int64_t count : {1, 3}) {
    Suite suite(jobs(count), as_expected);
    const std::vector<NamedCase> cases = numbered_cases(50);
    for (int i = 0; i < 2; ++i) {
      std::vector<std::string> names;
      SuiteEvents events;
      events.case_done = [&](const CaseResult& result) { names.push_back(result.name); };
      events.ends_at = [](const CaseResult& result) { return result.name >= "3"; };
      ListedCases source(cases);
      suite.run(source, events);
      EXPECT_THAT(names, ElementsAre("0", "1", "2", "3"));
    }
  }
}

TEST(SuiteSourceTest, AChildThatIsEndedAtOnceTellsItsParentNothing) {
  // Those beside the first case have just begun when they are ended.
  Suite suite(jobs(3), as_expected);
  const std::vector<NamedCase> cases = numbered_cases(4);
  SuiteEvents events;
  events.ends_at = [](const CaseResult&) { return true; };
  for (int i = 0; i < 200; ++i) {
    ListedCases source(cases);
    const SuiteSummary summary = suite.run(source, events);
    ASSERT_EQ(summary.signal, 0) << "run " << i;
    ASSERT_EQ(summary.passed, 1);
  }
}

TEST(SuiteSourceTest, TellsACaseAndAFreeSlotBeforeItBegins) {
  std::vector<int> of_slot(2, 0);
  std::vector<std::string> texts;
  SuiteEvents events;
  events.case_begins = [&](std::int64_t slot, const CaseText& text) {
    ++of_slot.at(static_cast<std::size_t>(slot));
    texts.push_back(text.name + ": " + text.text);
  };
  const std::vector<NamedCase> cases = numbered_cases(7);
  run_suite(cases, jobs(2), as_expected, events);
  EXPECT_EQ(of_slot[0] + of_slot[1], 7);
  EXPECT_EQ(texts.at(3), "3: " + print_case(cases[3].value));
}

TEST(SuiteSourceTest, ASignalBetweenTwoRunsEndsTheNext) {
  Suite suite(jobs(1), as_expected);
  raise(SIGINT);
  const std::vector<NamedCase> cases = numbered_cases(2);
  ListedCases source(cases);
  EXPECT_EQ(suite.run(source, {}).signal, SIGINT);
  EXPECT_EQ(suite.run(source, {}).num_done(), 0);
}

}  // namespace lockstep::test
