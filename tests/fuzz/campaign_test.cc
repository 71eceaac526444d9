// SPDX-License-Identifier: Apache-2.0
// Campaigns with planted judges: what is tried, found and kept, whatever happens to processes.
#include "harness/fuzz/campaign/campaign.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "harness/fuzz/campaign/campaign_text.h"
#include "harness/fuzz/campaign/corpus.h"
#include "harness/fuzz/shrink/finding.h"
#include "harness/scenario.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::harness::fuzz {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

CaseResult as_expected(const NamedCase& named) {
  CaseResult result;
  result.file = named.file;
  result.name = named.name;
  result.as_expected = true;
  result.longest_wait_ns = named.value.world.ranks * 1'000 + named.value.train.steps;
  return result;
}

CaseResult broken(const NamedCase& named, OutcomeKind kind) {
  CaseResult result = as_expected(named);
  result.as_expected = false;
  result.outcome.kind = kind;
  result.complaints = {std::string("expected outcome \"equal\", got \"") + to_string(kind) + '"'};
  return result;
}

/// Deadlocks with three ranks or more, else a crash with two micro-batches or more.
CaseResult two_kinds(const NamedCase& named) {
  if (named.value.world.ranks >= 3) return broken(named, OutcomeKind::kDeadlock);
  if (named.value.train.micro_batches >= 2) return broken(named, OutcomeKind::kCrash);
  return as_expected(named);
}

struct CampaignResult {
  CampaignSummary summary;
  std::vector<std::string> order;  ///< names of what was found
  std::vector<Found> found;
  std::vector<nlohmann::json> lines;
};

CampaignOptions options_of(const TemporaryFolder& folder, std::uint64_t num_cases) {
  CampaignOptions options;
  options.seed = 7;
  options.num_cases = num_cases;
  options.folder = folder.path("corpus");
  options.json_lines = folder.path("tried.jsonl");
  options.findings_max = 100;
  options.only_mode = true;
  options.shrink_limits.judged_max = 300;
  options.shrink_limits.seconds_max = 1e6;
  return options;
}

CampaignResult run(const CampaignOptions& options, std::int64_t jobs, const JudgeFunction& judge,
                   double case_timeout_s = 120.0) {
  CampaignResult out;
  SuiteOptions suite;
  suite.jobs = jobs;
  suite.case_timeout_s = case_timeout_s;
  CampaignEvents events;
  events.found = [&](const Found& found) { out.order.push_back(found.name); };
  events.shrunk = [&](const Found& found) { out.found.push_back(found); };
  out.summary = run_campaign(options, suite, judge, events, nullptr);
  std::istringstream text(TemporaryFolder::content(options.json_lines));
  for (std::string line; std::getline(text, line);) {
    out.lines.push_back(nlohmann::json::parse(line));
    out.lines.back().erase("seconds");
  }
  return out;
}

std::set<std::uint64_t> indices_of(const CampaignResult& result) {
  std::set<std::uint64_t> all;
  for (const nlohmann::json& line : result.lines) all.insert(line.at("index").get<std::uint64_t>());
  return all;
}

}  // namespace

TEST(Campaign, TriesAndFindsTheSameForAnyNumberOfJobs) {
  std::vector<CampaignResult> results;
  for (const std::int64_t jobs : {1, 2, 5}) {
    const TemporaryFolder folder;
    results.push_back(run(options_of(folder, 40), jobs, two_kinds));
    CampaignResult& result = results.back();
    EXPECT_THAT(result.lines, SizeIs(40));
    EXPECT_EQ(result.summary.cases.num_done(), 40);
    ASSERT_THAT(result.found, SizeIs(2)) << "one of each kind";
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(result.order[i], results[0].order[i]);
      EXPECT_EQ(print_case(result.found[i].shrunk.value),
                print_case(results[0].found[i].shrunk.value));
      EXPECT_EQ(result.found[i].shrunk.num_judged, results[0].found[i].shrunk.num_judged);
    }
    EXPECT_EQ(result.lines, results[0].lines);
    EXPECT_EQ(result.summary.findings, results[0].summary.findings);
  }
}

TEST(Campaign, ShrinksWhatItFindsAndWritesAFileThatIsThatCase) {
  const TemporaryFolder folder;
  const CampaignResult result = run(options_of(folder, 20), 2, two_kinds);
  ASSERT_THAT(result.found, Not(IsEmpty()));
  for (const Found& found : result.found) {
    const std::vector<NamedCase> read =
        parse_scenario_text(TemporaryFolder::content(found.path), found.path);
    EXPECT_EQ(print_case(read.at(0).value), print_case(found.shrunk.value));
    EXPECT_EQ(finding_kind(two_kinds(read.at(0))), found.kind);
    EXPECT_EQ(found.shrunk.result.file, found.path);
    if (found.kind == "deadlock") {
      EXPECT_EQ(found.shrunk.value.world.ranks, 3) << describe_found(found, true);
    }
    EXPECT_THAT(describe_found(found, true), HasSubstr(print_case(found.shrunk.value)));
  }
}

TEST(Campaign, StopsAtTheFirstFindingInTheOrderOfNumbers) {
  std::vector<std::uint64_t> counts;
  for (const std::int64_t jobs : {1, 3}) {
    const TemporaryFolder folder;
    CampaignOptions options = options_of(folder, 1'000);
    options.findings_max = 1;
    const CampaignResult result = run(options, jobs, two_kinds);
    ASSERT_THAT(result.found, SizeIs(1));
    EXPECT_EQ(result.order[0], "case " + std::to_string(result.lines.size() - 1));
    EXPECT_EQ(result.summary.cases.num_done(), static_cast<std::int64_t>(result.lines.size()));
    counts.push_back(result.lines.size());
  }
  EXPECT_EQ(counts[0], counts[1]);
}

TEST(Campaign, ShardsAreDisjointAndTogetherComplete) {
  std::set<std::uint64_t> all;
  for (std::uint64_t shard = 1; shard <= 3; ++shard) {
    const TemporaryFolder folder;
    CampaignOptions options = options_of(folder, 20);
    options.shard = shard;
    options.num_shards = 3;
    for (const std::uint64_t index : indices_of(run(options, 2, as_expected))) {
      EXPECT_EQ(index % 3, shard - 1);
      EXPECT_TRUE(all.insert(index).second);
    }
  }
  EXPECT_EQ(all.size(), 20U);
}

TEST(Campaign, ACaseThatKillsItsProcessIsFoundAndItsInputWasOnDisk) {
  const TemporaryFolder folder;
  CampaignOptions options = options_of(folder, 12);
  options.shrinks = false;
  const std::string corpus = options.folder;
  const JudgeFunction judge = [&](const NamedCase& named) -> CaseResult {
    const std::string text = print_case(named.value);
    bool is_on_disk = false;
    for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
      is_on_disk = is_on_disk || TemporaryFolder::content(entry.path().string()) == text;
    }
    if (!is_on_disk) return broken(named, OutcomeKind::kError);
    if (named.value.world.ranks >= 5) std::abort();
    return as_expected(named);
  };
  const CampaignResult result = run(options, 2, judge);
  ASSERT_THAT(result.found, SizeIs(1));
  EXPECT_EQ(result.found[0].kind, "internal_error/signal");
  EXPECT_GE(result.found[0].shrunk.value.world.ranks, 5);
  EXPECT_THAT(TemporaryFolder::content(result.found[0].path),
              HasSubstr(print_case(result.found[0].shrunk.value)));
  EXPECT_EQ(result.summary.cases.num_done(), 12);
}

TEST(Campaign, ACaseThatKillsItsProcessIsShrunkInOthers) {
  const TemporaryFolder folder;
  const JudgeFunction judge = [](const NamedCase& named) -> CaseResult {
    if (named.value.world.ranks >= 2) std::abort();
    return as_expected(named);
  };
  CampaignOptions options = options_of(folder, 12);
  options.findings_max = 1;
  const CampaignResult result = run(options, 1, judge);
  ASSERT_THAT(result.found, SizeIs(1));
  EXPECT_EQ(result.found[0].kind, "internal_error/signal");
  EXPECT_EQ(result.found[0].shrunk.value.world.ranks, 2);
}

TEST(Campaign, ACaseThatTakesTooLongIsFound) {
  const TemporaryFolder folder;
  const JudgeFunction judge = [](const NamedCase& named) {
    while (named.name == "seed=7,case=3") pause();
    return as_expected(named);
  };
  CampaignOptions options = options_of(folder, 6);
  options.shrinks = false;
  const CampaignResult result = run(options, 2, judge, 0.5);
  EXPECT_THAT(result.order, ElementsAre("case 3"));
  EXPECT_THAT(result.found, SizeIs(1));
  EXPECT_EQ(result.found.at(0).kind, "internal_error/time");
  EXPECT_EQ(result.summary.cases.num_done(), 6);
}

TEST(Campaign, WhatAKilledOneLeftBehindComesFirstInTheNext) {
  const TemporaryFolder folder;
  CampaignOptions options = options_of(folder, 9);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const pid_t campaign = fork();
  if (campaign == 0) {
    const JudgeFunction judge = [&](const NamedCase& named) -> CaseResult {
      if (named.name == "seed=7,case=4" && write(ends[1], "x", 1) == 1) pause();
      return as_expected(named);
    };
    run(options, 1, judge);
    _exit(1);
  }
  close(ends[1]);
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  kill(campaign, SIGKILL);
  waitpid(campaign, nullptr, 0);
  EXPECT_EQ(read(ends[0], &byte, 1), 0) << "a process of the campaign is still there";
  close(ends[0]);

  const std::vector<Leftover> left = leftovers(options.folder);
  ASSERT_THAT(left, SizeIs(1));
  std::string before_the_kill = TemporaryFolder::content(options.json_lines);
  EXPECT_EQ(std::count(before_the_kill.begin(), before_the_kill.end(), '\n'), 4)
      << "a line is on disk when its case is done";
  options.replays = {{parse_scenario_text(left[0].text, left[0].path).at(0), true}};
  options.num_cases = 2;
  const CampaignResult next = run(options, 1, as_expected);
  ASSERT_THAT(next.lines, SizeIs(3));
  EXPECT_EQ(next.lines[0].at("file"), left[0].path);
  EXPECT_EQ(next.lines[1].at("index"), 0);
  EXPECT_THAT(leftovers(options.folder), IsEmpty());
}

TEST(Campaign, AFindingIsOnDiskWhileItIsShrunk) {
  const TemporaryFolder folder;
  CampaignOptions options = options_of(folder, 20);
  options.findings_max = 1;
  const std::string corpus = options.folder;
  const JudgeFunction judge = [&](const NamedCase& named) -> CaseResult {
    if (named.value.world.ranks < 3) return as_expected(named);
    if (named.name != "deadlock") return broken(named, OutcomeKind::kDeadlock);
    // While it is shrunk: somebody else's eyes.
    std::int64_t num_on_disk = 0;
    for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
      const std::string text = TemporaryFolder::content(entry.path().string());
      num_on_disk += text.empty() || text == print_case(named.value) ? 0 : 1;
    }
    return num_on_disk == 1 ? broken(named, OutcomeKind::kDeadlock) : as_expected(named);
  };
  const CampaignResult result = run(options, 1, judge);
  ASSERT_THAT(result.found, SizeIs(1));
  EXPECT_GT(result.found[0].shrunk.num_steps, 0);
  EXPECT_EQ(result.found[0].shrunk.value.world.ranks, 3);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(corpus), {}), 1) << "the finding";
}

TEST(Campaign, AFindingThatCannotBeWrittenIsToldBeforeTheError) {
  const TemporaryFolder folder;
  CampaignOptions options = options_of(folder, 20);
  options.findings_max = 1;
  options.shrinks = false;
  std::vector<Found> told;
  CampaignEvents events;
  events.found = [&](const Found&) {
    std::filesystem::remove_all(options.folder);
    folder.write("corpus", "a file in its place");
  };
  events.shrunk = [&](const Found& found) { told.push_back(found); };
  EXPECT_THROW(run_campaign(options, {}, two_kinds, events, nullptr), UsageError);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].path, "");
  EXPECT_THAT(describe_found(told[0], false), HasSubstr("not written:\nschema = 1\n"));
}

TEST(Campaign, ALeftoverThatShowsSomethingIsKeptAsAFinding) {
  const TemporaryFolder folder;
  CampaignOptions options = options_of(folder, 0);
  NamedCase named{folder.path(".running-1-0"), "", {}};
  named.value.title = "left";
  named.value.world.ranks = 6;
  named.value.expect.outcome = "within_bound";
  folder.write(".running-1-0", print_case(named.value));
  options.replays = {{named, true}};
  const CampaignResult result = run(options, 1, two_kinds);
  ASSERT_THAT(result.found, SizeIs(1));
  EXPECT_EQ(result.found[0].shrunk.value.world.ranks, 3);
  EXPECT_FALSE(std::filesystem::exists(folder.path(".running-1-0")));
  EXPECT_TRUE(std::filesystem::exists(result.found[0].path));
}

TEST(Campaign, AFileOfTheCorpusThatStillFailsIsToldAndStaysAsItIs) {
  const TemporaryFolder folder;
  CampaignOptions options = options_of(folder, 10);
  options.findings_max = 1;
  NamedCase named{folder.path("deadlock-1.toml"), "", {}};
  named.value.world.ranks = 6;
  options.replays = {{named, false}, {named, false}};
  const CampaignResult result = run(options, 2, two_kinds);
  EXPECT_THAT(result.order, ElementsAre(named.file, named.file));
  EXPECT_THAT(result.lines, SizeIs(2)) << "nothing new is drawn then";
  EXPECT_EQ(result.found.at(0).path, named.file);
  EXPECT_EQ(result.found.at(0).shrunk.value.world.ranks, 6);
  EXPECT_FALSE(std::filesystem::exists(options.folder + "/deadlock-1.toml"));
}

TEST(Campaign, KeepsEveryFindingOnlyWhereThatIsAskedFor) {
  for (const bool keep_all : {false, true}) {
    const TemporaryFolder folder;
    CampaignOptions options = options_of(folder, 12);
    options.keep_all = keep_all;
    options.shrinks = false;
    const JudgeFunction judge = [](const NamedCase& named) {
      return broken(named, OutcomeKind::kDeadlock);
    };
    const CampaignResult result = run(options, 2, judge);
    EXPECT_THAT(result.found, SizeIs(keep_all ? 12 : 1));
    EXPECT_EQ(result.summary.findings.at("deadlock"), 12);
  }
}

TEST(Campaign, BeginsNoCaseWhenItsTimeIsOver) {
  const TemporaryFolder folder;
  CampaignOptions options = options_of(folder, 1'000'000);
  options.seconds = 1e-9;
  EXPECT_EQ(run(options, 2, as_expected).summary.cases.num_done(), 0);
  // Ends by its time, and tells which scripts that were.
  options.seconds = 0.2;
  const CampaignResult result = run(options, 2, as_expected);
  EXPECT_EQ(result.summary.num_indices, result.lines.size());
  EXPECT_EQ(result.summary.cases.num_done(), static_cast<std::int64_t>(result.lines.size()));
}

TEST(Campaign, ASignalEndsItWithWhatIsDone) {
  const TemporaryFolder folder;
  const JudgeFunction judge = [](const NamedCase& named) {
    if (named.name == "seed=7,case=3") {
      kill(getppid(), SIGTERM);
      for (;;) pause();
    }
    return as_expected(named);
  };
  const CampaignResult result = run(options_of(folder, 9), 1, judge);
  EXPECT_EQ(result.summary.signal, SIGTERM);
  EXPECT_THAT(result.lines, SizeIs(3));
  EXPECT_THAT(leftovers(folder.path("corpus")), IsEmpty());
}

TEST(Campaign, ASignalWhileShrinkingKeepsTheFinding) {
  const TemporaryFolder folder;
  // While it is shrunk, scripts are called by its kind.
  const JudgeFunction judge = [](const NamedCase& named) {
    if (named.name == "deadlock") {
      kill(getppid(), SIGTERM);
      for (;;) pause();
    }
    return broken(named, OutcomeKind::kDeadlock);
  };
  const CampaignResult result = run(options_of(folder, 9), 1, judge);
  EXPECT_EQ(result.summary.signal, SIGTERM);
  ASSERT_THAT(result.found, SizeIs(1));
  EXPECT_TRUE(std::filesystem::exists(result.found[0].path));
  EXPECT_FALSE(result.found[0].shrunk.is_minimal);
}

TEST(Campaign, SteersTowardLongWaitsWhateverTheNumberOfJobs) {
  std::vector<std::string> best;
  for (const std::int64_t jobs : {1, 3}) {
    const TemporaryFolder folder;
    CampaignOptions options = options_of(folder, 3 * Steering::kGeneration);
    options.toward = Toward::kWait;
    const CampaignResult result = run(options, jobs, as_expected);
    ASSERT_THAT(result.lines, SizeIs(3 * Steering::kGeneration));
    ASSERT_THAT(result.summary.best, Not(IsEmpty()));
    best.push_back(result.summary.best[0].name + print_case(result.summary.best[0].value));
    // Later generations descend from the best of the first, so that they wait longer on average.
    std::array<std::int64_t, 3> sums{};
    for (const nlohmann::json& line : result.lines) {
      sums.at(line.at("index").get<std::size_t>() / Steering::kGeneration) +=
          line.at("wait_ns").get<std::int64_t>();
    }
    EXPECT_GT(sums[1], sums[0]);
    EXPECT_GT(sums[2], sums[0]);
  }
  EXPECT_EQ(best[0], best[1]);
}

TEST(Campaign, IsDescribedWithTheCommandThatRepeatsIt) {
  const TemporaryFolder folder;
  const CampaignOptions options = options_of(folder, 12);
  const CampaignResult result = run(options, 1, two_kinds);
  const std::string text = describe_campaign(result.summary, options, " --valid");
  EXPECT_THAT(text, HasSubstr("Cases: 12, 12 valid, 0 broken. Outcomes: "));
  EXPECT_THAT(text, HasSubstr("Found: crash ("));
  EXPECT_THAT(text, HasSubstr("again: lockstep fuzz --seed 7 --cases 12 --valid\n"));
}

}  // namespace lockstep::harness::fuzz
