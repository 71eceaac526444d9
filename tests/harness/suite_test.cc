// SPDX-License-Identifier: Apache-2.0
// Many cases in several processes: order, isolation, limits, signals.
#include "harness/suite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

#include "core/error.h"
#include "harness/process_time.h"
#include "harness/report/case_json.h"
#include "tests/harness/suite_cases.h"

namespace lockstep::test {

using namespace harness;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

namespace {

struct SuiteResult {
  std::vector<CaseResult> results;
  SuiteSummary summary;
};

SuiteResult run(const std::vector<NamedCase>& cases, const SuiteOptions& options,
                const JudgeFunction& judge) {
  SuiteResult out;
  SuiteEvents events;
  events.case_done = [&](const CaseResult& result) { out.results.push_back(result); };
  out.summary = run_suite(cases, options, judge, events);
  return out;
}

/// Everything but the time, as text.
std::vector<std::string> without_times(std::vector<CaseResult> results) {
  std::vector<std::string> out;
  for (CaseResult& result : results) {
    result.seconds = 0.0;
    out.push_back(case_result_to_json(result));
  }
  return out;
}

void stay_on_first_processor() {
  cpu_set_t all, one;
  CPU_ZERO(&one);
  if (sched_getaffinity(0, sizeof all, &all) != 0) std::abort();
  int first = 0;
  while (!CPU_ISSET(first, &all)) ++first;
  CPU_SET(first, &one);
  if (sched_setaffinity(0, sizeof one, &one) != 0) std::abort();
}

/// Processes that want the first processor all the time, while there is this one.
class Spinners {
 public:
  explicit Spinners(int count) {
    for (int i = 0; i < count; ++i) {
      const pid_t pid = fork();
      if (pid < 0) throw std::runtime_error("no process");
      if (pid > 0) pids_.push_back(pid);
      if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        stay_on_first_processor();
        spin();
      }
    }
  }
  ~Spinners() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }
  Spinners(const Spinners&) = delete;
  Spinners& operator=(const Spinners&) = delete;

  [[noreturn]] static void spin() {
    for (volatile std::int64_t count = 0;;) count = count + 1;
  }

 private:
  std::vector<pid_t> pids_;
};

/// A pipe that the tests use to make one process wait for another.
struct Pipe {
  Pipe() {
    if (pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
  }
  ~Pipe() {
    close(ends[0]);
    close_writer();
  }
  void close_writer() {
    if (ends[1] >= 0) close(ends[1]);
    ends[1] = -1;
  }
  void write_pid() {
    const pid_t pid = getpid();
    if (write(ends[1], &pid, sizeof pid) != static_cast<ssize_t>(sizeof pid)) std::abort();
  }
  /// Waits for a number; -1 once no process holds the writing end any more.
  pid_t read_pid() {
    pid_t pid = -1;
    return read(ends[0], &pid, sizeof pid) == static_cast<ssize_t>(sizeof pid) ? pid : -1;
  }
  std::array<int, 2> ends{};
};

[[noreturn]] void wait_for_ever() {
  for (;;) pause();
}

/// Runs a suite of two cases that never end in a process of its own, sends that process `signal`
/// as soon as both cases have begun, and returns its wait status. Every process of the suite holds
/// the writing end of `alive`, and leaves its number there when it has begun.
int interrupt_suite(int signal, Pipe& alive) {
  const pid_t driver = fork();
  if (driver == 0) {
    const JudgeFunction judge = [&](const NamedCase&) -> CaseResult {
      alive.write_pid();
      wait_for_ever();
    };
    const SuiteSummary summary = run_suite(numbered_cases(4), jobs(2), judge, {});
    _exit(exit_status(summary));
  }
  alive.close_writer();
  EXPECT_GT(alive.read_pid(), 0);
  EXPECT_GT(alive.read_pid(), 0);
  kill(driver, signal);
  int status = 0;
  EXPECT_EQ(waitpid(driver, &status, 0), driver);
  return status;
}

}  // namespace

TEST(SuiteTest, ResultsAreTheSameInTheSameOrderForAnyNumberOfJobs) {
  const std::vector<NamedCase> cases = numbered_cases(40);
  SuiteOptions here;
  here.in_process = true;
  const auto expected = without_times(run(cases, here, as_expected).results);
  ASSERT_EQ(expected.size(), 40U);
  for (const std::int64_t count : {1, 2, 5, 64}) {
    const SuiteResult result = run(cases, jobs(count), as_expected);
    EXPECT_EQ(without_times(result.results), expected) << count << " jobs";
    EXPECT_EQ(result.summary.passed, 40);
    EXPECT_EQ(exit_status(result.summary), 0);
  }
}

TEST(SuiteTest, AnEarlyCaseThatEndsLastIsStillPassedOnFirst) {
  // Case 0 ends only after case 3 has been judged, by the other process.
  Pipe pipe;
  const JudgeFunction judge = [&](const NamedCase& named) {
    if (named.name == "0") pipe.read_pid();
    if (named.name == "3") pipe.write_pid();
    return as_expected(named);
  };
  std::vector<std::string> order;
  for (const CaseResult& result : run(numbered_cases(6), jobs(2), judge).results) {
    order.push_back(result.name);
  }
  EXPECT_THAT(order, ElementsAre("0", "1", "2", "3", "4", "5"));
}

TEST(SuiteTest, ACaseThatKillsItsProcessIsADefectAndTheOthersAreNotTouched) {
  for (const std::int64_t count : {1, 2}) {
    const JudgeFunction judge = [](const NamedCase& named) {
      if (named.name == "2") std::abort();
      if (named.name == "4") _exit(7);
      return as_expected(named);
    };
    const SuiteResult result = run(numbered_cases(7), jobs(count), judge);
    ASSERT_EQ(result.results.size(), 7U);
    EXPECT_THAT(result.results[2].internal_error, HasSubstr("SIGABRT (signal 6)"));
    EXPECT_EQ(result.results[2].outcome.kind, OutcomeKind::kCrash);
    EXPECT_THAT(result.results[4].internal_error, HasSubstr("exit status 7"));
    EXPECT_EQ(result.results[4].name, "4");
    EXPECT_EQ(result.summary.passed, 5);
    EXPECT_EQ(result.summary.defects, 2);
    EXPECT_EQ(exit_status(result.summary), 3);
  }
}

TEST(SuiteTest, WhatAJudgeThrowsIsADefectOfItsCase) {
  for (const bool in_process : {false, true}) {
    SuiteOptions options;
    options.in_process = in_process;
    const JudgeFunction judge = [](const NamedCase& named) {
      if (named.name == "1") throw InvariantError("planted");
      return as_expected(named);
    };
    const SuiteResult result = run(numbered_cases(3), options, judge);
    EXPECT_EQ(result.results.at(1).internal_error, "planted");
    EXPECT_EQ(result.summary.passed, 2);
    EXPECT_EQ(exit_status(result.summary), 3);
  }
}

TEST(SuiteTest, ACaseThatTakesTooLongIsADefectAndItsProcessesAreEnded) {
  Pipe alive;
  SuiteOptions options = jobs(2);
  options.case_timeout_s = 1.0;
  const JudgeFunction judge = [&](const NamedCase& named) {
    if (named.name != "1") return as_expected(named);
    // Even what ignores a friendly request, and what a case itself has started.
    signal(SIGTERM, SIG_IGN);
    if (fork() == 0) wait_for_ever();
    wait_for_ever();
  };
  const SuiteResult result = run(numbered_cases(4), options, judge);
  EXPECT_THAT(result.results.at(1).internal_error, HasSubstr("1 s (--case-timeout)"));
  EXPECT_EQ(result.summary.passed, 3);
  EXPECT_EQ(exit_status(result.summary), 3);
  alive.close_writer();
  EXPECT_EQ(alive.read_pid(), -1) << "a process of the suite is still there";
}

TEST(SuiteTest, OnABusyMachineACaseHasItsTimeOfTheProcessor) {
  const Spinners others(5);
  SuiteOptions options;
  options.case_timeout_s = 0.5;
  options.process_start = stay_on_first_processor;
  // Of six on one processor each is given a sixth, so that 0.25 s take about 1.5.
  const JudgeFunction judge = [](const NamedCase& named) {
    while (processor_seconds(getpid()) < 0.25) {
    }
    return as_expected(named);
  };
  const SuiteResult result = run(numbered_cases(1), options, judge);
  EXPECT_EQ(result.results.at(0).internal_error, "");
  EXPECT_GT(result.results.at(0).seconds, options.case_timeout_s);
}

TEST(SuiteTest, ACaseThatNeverStopsComputingIsADefectOnABusyMachineToo) {
  const Spinners other(1);
  SuiteOptions options;
  options.case_timeout_s = 0.3;
  options.process_start = stay_on_first_processor;
  const JudgeFunction judge = [](const NamedCase&) -> CaseResult { Spinners::spin(); };
  const SuiteResult result = run(numbered_cases(1), options, judge);
  EXPECT_THAT(result.results.at(0).internal_error, HasSubstr("0.3 s (--case-timeout)"));
}

TEST(SuiteTest, AProcessThatCannotStartCostsACaseEachAndNoMore) {
  SuiteOptions options;
  options.process_start = [] { _exit(9); };
  const SuiteResult result = run(numbered_cases(3), options, as_expected);
  EXPECT_EQ(result.summary.defects, 3);
  EXPECT_THAT(result.results.at(0).internal_error, HasSubstr("exit status 9"));
}

TEST(SuiteTest, FailFastStopsAtTheFirstFailureInOrder) {
  for (const std::int64_t count : {1, 3}) {
    SuiteOptions options = jobs(count);
    options.fail_fast = true;
    const JudgeFunction judge = [](const NamedCase& named) {
      CaseResult result = as_expected(named);
      result.as_expected = named.value.seed < 5;
      return result;
    };
    const SuiteResult result = run(numbered_cases(50), options, judge);
    ASSERT_EQ(result.results.size(), 6U) << count << " jobs";
    EXPECT_EQ(result.results.back().name, "5");
    EXPECT_TRUE(result.summary.stopped_at_failure);
    EXPECT_EQ(result.summary.passed, 5);
    EXPECT_EQ(exit_status(result.summary), 1);
  }
}

TEST(SuiteTest, AnInterruptEndsAllProcessesAndSaysSo) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Pipe alive;
    const int status = interrupt_suite(signal, alive);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + signal);
    EXPECT_EQ(alive.read_pid(), -1) << "a process of the suite is still there";
  }
}

TEST(SuiteTest, ChildrenDoNotOutliveAParentThatIsKilled) {
  Pipe alive;
  const int status = interrupt_suite(SIGKILL, alive);
  ASSERT_TRUE(WIFSIGNALED(status));
  // Blocks until the last process that holds the writing end has gone.
  EXPECT_EQ(alive.read_pid(), -1);
}

TEST(SuiteTest, AnInterruptedSuitePassesOnWhatIsDone) {
  // Case 0 is done; case 1 interrupts its parent and never ends.
  const JudgeFunction judge = [](const NamedCase& named) {
    if (named.name == "0") return as_expected(named);
    kill(getppid(), SIGTERM);
    wait_for_ever();
  };
  const SuiteResult result = run(numbered_cases(3), jobs(1), judge);
  EXPECT_EQ(result.summary.signal, SIGTERM);
  EXPECT_EQ(result.results.size(), 1U);
  EXPECT_EQ(result.summary.num_done(), 1);
}

TEST(SuiteTest, SignalsThatTheCallerIgnoresStayIgnored) {
  const auto old_action = std::signal(SIGHUP, SIG_IGN);
  const JudgeFunction judge = [](const NamedCase& named) {
    if (named.name == "0") kill(getppid(), SIGHUP);
    return as_expected(named);
  };
  EXPECT_EQ(run(numbered_cases(3), jobs(1), judge).summary.passed, 3);
  std::signal(SIGHUP, old_action);
}

TEST(SuiteTest, LeavesNoChildAndNoChangedSignals) {
  sigset_t before;
  sigprocmask(SIG_SETMASK, nullptr, &before);
  run(numbered_cases(3), jobs(2), as_expected);
  sigset_t after;
  sigprocmask(SIG_SETMASK, nullptr, &after);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal));
  }
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(SuiteTest, WhatAnEventThrowsEndsTheRunAsItIs) {
  SuiteEvents events;
  events.case_done = [](const CaseResult&) { throw UsageError("no space is left"); };
  try {
    run_suite(numbered_cases(3), jobs(2), as_expected, events);
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "no space is left");
  }
}

TEST(SuiteTest, AnEmptySuiteIsFine) {
  const SuiteResult result = run({}, jobs(4), as_expected);
  EXPECT_EQ(result.summary.num_done(), 0);
  EXPECT_EQ(exit_status(result.summary), 0);
}

TEST(SuiteTest, RefusesOptionsThatCannotBe) {
  EXPECT_THROW(run({}, jobs(0), as_expected), UsageError);
  SuiteOptions options;
  options.case_timeout_s = 0.0;
  EXPECT_THROW(run({}, options, as_expected), UsageError);
}

}  // namespace lockstep::test
