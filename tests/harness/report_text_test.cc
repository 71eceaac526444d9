// SPDX-License-Identifier: Apache-2.0
// The report for people.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "harness/report/printable.h"
#include "harness/report/text_case.h"
#include "harness/report/text_report.h"
#include "tests/harness/report_samples.h"
#include "tests/support/golden.h"

namespace lockstep::test {

using namespace harness;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string text_report(const TextReportOptions& options) {
  std::ostringstream out;
  feed_samples(*make_text_report(out, options));
  return out.str();
}

TEST(TextReportTest, ShowsFailuresInFullAndTheRestPerFile) {
  expect_golden("report.txt", text_report({}));
}

TEST(TextReportTest, VerboseShowsALinePerCase) {
  expect_golden("report_verbose.txt", text_report({true, false}));
}

TEST(TextReportTest, EveryOutcomeIsDescribedInFull) {
  std::string all;
  for (const CaseResult& sample : all_samples()) all += describe_case(sample, {});
  expect_golden("cases.txt", all);
}

TEST(TextReportTest, EndsWithTheCountsAloneOnTheirLine) {
  // Of the samples, two are as expected, one is not run and five are not as expected.
  EXPECT_THAT(text_report({}), EndsWith("\n2 passed, 5 failed, 1 skipped\n"));
}

TEST(TextReportTest, SaysHowASuiteEndedEarly) {
  SuiteSummary summary;
  summary.num_cases = 9;
  summary.passed = 4;
  summary.signal = 2;
  EXPECT_THAT(describe_summary(summary),
              HasSubstr("Ended early by SIGINT (signal 2): 4 of 9 cases"));
  EXPECT_EQ(exit_status(summary), 130);
  summary.signal = 0;
  summary.stopped_at_failure = true;
  EXPECT_THAT(describe_summary(summary), HasSubstr("Stopped at the first failure: 4 of 9 cases"));
}

TEST(TextReportTest, ADefectOutranksAFailureAndADifferenceFromTheSimulatorIsOne) {
  SuiteSummary summary;
  CaseResult result = sample_within_bound();
  tally(result, summary);
  EXPECT_EQ(exit_status(summary), 0);
  result.equals_simulator = false;
  tally(result, summary);
  EXPECT_EQ(exit_status(summary), 1);
  tally(sample_defect(), summary);
  EXPECT_EQ(exit_status(summary), 3);
}

TEST(TextReportTest, CountsWhatWasComparedWithThePeer) {
  SuiteSummary summary;
  CaseResult result = sample_within_bound();
  result.peer = PeerComparison{"torch", {}, ""};
  tally(result, summary);
  result.peer = PeerComparison{"torch", {"rank 0: ddp finished, torch waits"}, "known"};
  tally(result, summary);
  EXPECT_THAT(describe_case(result, {}), HasSubstr("torch is known to differ: known\n"
                                                   "    rank 0: ddp finished, torch waits\n"));
  result.peer->reason.clear();
  tally(result, summary);
  EXPECT_THAT(describe_summary(summary), HasSubstr("3 cases, 1 the same in every bit and "
                                                   "collective, 1 differ as intended, 1 "
                                                   "unexplained"));
}

TEST(TextReportTest, ColoursOnlyWhenTold) {
  EXPECT_THAT(text_report({}), Not(HasSubstr("\x1b")));
  EXPECT_THAT(text_report({false, true}), HasSubstr("\x1b[1;31mFAIL \x1b[0m"));
}

TEST(TextReportTest, LongTablesKeepBothEndsAndTheFirstDifference) {
  std::vector<StepSummary> steps(100);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    steps[i].step = static_cast<std::int64_t>(i);
    steps[i].reference_checksum = 7;
    steps[i].checksums = {7, i >= 50 ? 8U : 7U};
  }
  std::vector<std::string> first_words;
  std::istringstream lines(describe_steps(steps, false));
  for (std::string line, word; std::getline(lines, line);) {
    std::istringstream(line) >> word;
    first_words.push_back(word);
  }
  EXPECT_THAT(first_words, ::testing::ElementsAre("step", "0", "1", "...", "48", "49", "50", "51",
                                                  "52", "...", "98", "99"));
  std::istringstream all(describe_steps(steps, true));
  std::int64_t num_lines = 0;
  for (std::string line; std::getline(all, line);) ++num_lines;
  EXPECT_EQ(num_lines, 101);
}

TEST(TextReportTest, RanksThatAgreeShareAChecksum) {
  StepSummary step;
  step.reference_checksum = 1;
  step.checksums = {1, 2, 1, 2, 2};
  EXPECT_THAT(describe_steps({step}, false),
              HasSubstr("ranks 0, 2 0000000000000001; "
                        "ranks 1, 3, 4 0000000000000002  <- differ"));
}

TEST(TextReportTest, ARankThatDidNotMakeAStepIsLeftOutOfIt) {
  StepSummary step;
  step.checksums = {0, 1, 1};
  EXPECT_THAT(describe_steps({step}, false), Not(HasSubstr("differ")));
  step.checksums = {0, 1, 2};
  EXPECT_THAT(describe_steps({step}, false),
              HasSubstr("rank 1 0000000000000001; rank 2 0000000000000002  <- differ"));
}

TEST(PrintableTest, LeavesGoodTextAlone) {
  const std::string good = "tab\t, newline\n, \xc3\xaf, \xe2\x86\x92, \xf0\x9f\x98\x80";
  EXPECT_EQ(printable(good), good);
}

TEST(PrintableTest, ShowsControlCharactersAndReplacesWhatIsNoText) {
  EXPECT_EQ(printable("\x1b[2J\r\x7f"), "\\x1b[2J\\x0d\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"), "\\x9b");  // The one-character form of escape and bracket.
  const std::string replacement = "\xef\xbf\xbd";
  EXPECT_EQ(printable("a\xff"
                      "b"),
            "a" + replacement + "b");
  EXPECT_EQ(printable("\xc0\x80"), replacement + replacement);  // Zero, spelt too long.
  EXPECT_EQ(printable("\xe2\x86"), replacement + replacement);  // Cut short.
  EXPECT_EQ(printable("\xef\xbf\xbf"), replacement);            // A non-character.
  EXPECT_EQ(printable("\xed\xa0\x80"), replacement + replacement + replacement);  // A surrogate.
}

TEST(PrintableTest, WordsOfAShellComeBackAsTheyAre) {
  EXPECT_EQ(shell_word("scenarios/a.toml"), "scenarios/a.toml");
  EXPECT_EQ(shell_word("ranks=2,seed=3"), "ranks=2,seed=3");
  EXPECT_EQ(shell_word("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(shell_word(""), "''");
}

TEST(PrintableTest, RunsOfRanksAreJoined) {
  EXPECT_EQ(rank_list({}), "no rank");
  EXPECT_EQ(rank_list({4}), "rank 4");
  EXPECT_EQ(rank_list({0, 1}), "ranks 0, 1");
  EXPECT_EQ(rank_list({0, 1, 2, 5, 7, 8, 9}), "ranks 0-2, 5, 7-9");
}

}  // namespace lockstep::test
