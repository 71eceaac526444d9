// SPDX-License-Identifier: Apache-2.0
// `lockstep fuzz` as a program: options, files, exit statuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "tests/support/run_program.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

/// The sum of gradients where their mean is due, and nobody said so.
constexpr const char* kBad = R"(schema = 1
title = "A sum is no mean"
[world]
ranks = 4
[model]
widths = [4, 4, 2]
[train]
steps = 3
[[fault]]
kind = "sum_not_mean"
[expect]
outcome = "within_bound"
)";

/// Runs where there is no scenarios/regressions, with its own folder for temporary files.
class FuzzCommandTest : public ::testing::Test {
 protected:
  FuzzCommandTest() { std::filesystem::create_directory(folder_.path("temporary")); }

  ProgramResult fuzz(const std::string& arguments) const {
    return run_program({"/bin/sh", "-c",
                        "cd '" + folder_.path() + "' && TMPDIR='" + folder_.path("temporary") +
                            "' exec " LOCKSTEP_BINARY " fuzz " + arguments});
  }

  void expect_refused(const std::string& arguments, const std::string& message) const {
    const ProgramResult result = fuzz(arguments);
    EXPECT_EQ(result.exit_status, 2) << arguments;
    EXPECT_THAT(result.err, HasSubstr(message));
  }

  TemporaryFolder folder_;
};

std::vector<nlohmann::json> lines_of(const std::string& text) {
  std::vector<nlohmann::json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::string without_times(const std::string& text) {
  static const std::regex kRate(R"(\n\d+ cases in .*\n)");
  return std::regex_replace(text, kRate, "\n");
}

}  // namespace

TEST_F(FuzzCommandTest, ScriptsThatEndAsPredictedAreStatus0AndTheSeedIsTold) {
  const ProgramResult result = fuzz("--cases 6 --jobs 2 --valid");
  EXPECT_EQ(result.exit_status, 0) << result.out << result.err;
  EXPECT_THAT(result.err, IsEmpty()) << "progress is for terminals only";
  std::smatch seed;
  ASSERT_TRUE(std::regex_search(result.out, seed, std::regex(R"(^lockstep fuzz --seed (\d+)\n)")));
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("Cases: 6, 6 valid, 0 broken."), HasSubstr("Found: nothing.\n"),
            EndsWith("again: lockstep fuzz --seed " + seed[1].str() + " --cases 6 --valid\n")));
}

TEST_F(FuzzCommandTest, OneSeedTriesTheSameWhateverTheNumberOfJobs) {
  std::vector<std::string> texts;
  std::vector<std::vector<nlohmann::json>> lines;
  for (const char* jobs : {"1", "3"}) {
    texts.push_back(without_times(
        fuzz("--cases 12 --seed 5 --json-lines tried.jsonl --jobs " + std::string(jobs)).out));
    lines.push_back(lines_of(TemporaryFolder::content(folder_.path("tried.jsonl"))));
    for (nlohmann::json& line : lines.back()) line.erase("seconds");
  }
  EXPECT_EQ(texts[0], texts[1]);
  ASSERT_THAT(lines[0], SizeIs(12));
  EXPECT_EQ(lines[0], lines[1]);
  EXPECT_EQ(lines[0][3].at("index"), 3);
  EXPECT_EQ(lines[0][3].at("seed"), 5);
  EXPECT_EQ(lines[0][3].at("finding"), "");
  EXPECT_THAT(lines[0][3].at("options").get<std::vector<std::string>>(), Not(IsEmpty()));
}

TEST_F(FuzzCommandTest, LinesOnTheStandardOutputAreAloneThere) {
  const ProgramResult result = fuzz("--cases 3 --seed 5 --json-lines -");
  EXPECT_THAT(lines_of(result.out), SizeIs(3));
  EXPECT_THAT(result.err, HasSubstr("again: lockstep fuzz --seed 5 --cases 3\n"));
}

TEST_F(FuzzCommandTest, TheCorpusComesFirstAndWhatStillFailsThereIsFound) {
  std::filesystem::create_directory(folder_.path("corpus"));
  folder_.write("corpus/bad.toml", kBad);
  const ProgramResult result = fuzz("--cases 5 --seed 1 --corpus corpus");
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("found diverged/"), HasSubstr(" in corpus/bad.toml"),
                    HasSubstr("again: lockstep replay corpus/bad.toml\n"),
                    HasSubstr("Replayed: 1, 0 as expected.\n"), HasSubstr("Cases: 0, ")));
  EXPECT_EQ(TemporaryFolder::content(folder_.path("corpus/bad.toml")), kBad);
}

TEST_F(FuzzCommandTest, AnInputLeftBehindIsReplayedShrunkAndKept) {
  std::filesystem::create_directory(folder_.path("corpus"));
  folder_.write("corpus/.running-1-0", kBad);
  const ProgramResult result = fuzz("--cases 5 --seed 1 --corpus corpus --no-replay");
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("left behind by a campaign that was killed"),
                                HasSubstr("\n  shrunk in "), HasSubstr("ranks = ")));
  std::smatch path;
  ASSERT_TRUE(std::regex_search(result.out, path,
                                std::regex(R"(again: lockstep replay (corpus/diverged-\S*))")));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("corpus/.running-1-0")));
  const ProgramResult again = run_program({LOCKSTEP_BINARY, "run", folder_.path(path[1].str())});
  EXPECT_EQ(again.exit_status, 1) << again.out << again.err;
  EXPECT_THAT(again.out, HasSubstr("first divergence: "));
}

TEST_F(FuzzCommandTest, AnInvalidCorpusIsAnErrorWithItsPlaceBeforeAnythingRuns) {
  std::filesystem::create_directory(folder_.path("corpus"));
  folder_.write("corpus/wrong.toml", "schema = 1\ntitle = 7\n");
  expect_refused("--cases 5 --corpus corpus", "corpus/wrong.toml:2:");
}

TEST_F(FuzzCommandTest, ACorpusMayBeWithoutAnyFile) {
  std::filesystem::create_directory(folder_.path("corpus"));
  for (int i = 0; i < 2; ++i) {
    const ProgramResult result = fuzz("--cases 2 --seed 1 --corpus corpus");
    EXPECT_EQ(result.exit_status, 0) << result.err;
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path("corpus")));
  }
}

TEST_F(FuzzCommandTest, OverGlooScriptsWithAMistakeEndAsInTheSimulator) {
  const ProgramResult result = fuzz("--cases 6 --seed 1 --ranks-max 3 --backend gloo");
  EXPECT_EQ(result.exit_status, 0) << result.out << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr(" 0 broken.")));
  expect_refused("--backend c10d_gloo --broken", "leave out --sync, --against");
}

TEST_F(FuzzCommandTest, ADiskThatIsFullIsToldAsThat) {
  expect_refused("--cases 2 --seed 1 --json-lines /dev/full", "cannot write '/dev/full'");
  expect_refused("--cases 1 --seed 1 > /dev/full", "cannot write to the standard output: No space");
}

TEST_F(FuzzCommandTest, ShardsTryDifferentScripts) {
  std::set<int> all;
  for (const char* shard : {"1/2", "2/2"}) {
    fuzz("--cases 9 --seed 3 --json-lines tried.jsonl --shard " + std::string(shard));
    for (const auto& line : lines_of(TemporaryFolder::content(folder_.path("tried.jsonl")))) {
      EXPECT_TRUE(all.insert(line.at("index").get<int>()).second);
    }
  }
  EXPECT_THAT(all, SizeIs(9));
}

TEST_F(FuzzCommandTest, AnEmptyPairIsStatus1WhereThatIsAskedFor) {
  const std::string arguments = "--cases 2 --seed 1 --valid --ranks-max 2 --pairs-file pairs.csv";
  EXPECT_EQ(fuzz(arguments).exit_status, 0);
  EXPECT_THAT(
      TemporaryFolder::content(folder_.path("pairs.csv")),
      AllOf(StartsWith("first,second,count,cell\n"), HasSubstr("\"mode=valid\",\"model=graph\",")));
  const ProgramResult result = fuzz(arguments + " --fail-on-empty-pair");
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.out, HasSubstr("\nPairs of options: "));
}

TEST_F(FuzzCommandTest, RefusesOptionsThatMakeNoSense) {
  expect_refused("--seed x", "--seed takes an integer");
  expect_refused("--cases -1", "--cases");
  expect_refused("--time 0", "--time: must be a number above 0, not '0'");
  expect_refused("--time nan", "--time: must be a number above 0, not 'nan'");
  expect_refused("--properties -2", "--properties");
  expect_refused("--jobs 0", "--jobs");
  expect_refused("--shard 3/2", "--shard takes I/N");
  expect_refused("--valid --broken", "leave nothing");
  expect_refused("--backend golo", "did you mean 'gloo'");
  expect_refused("--sync flat", "--sync takes ddp or torch");
  expect_refused("--against flat", "--against takes torch");
  expect_refused("--toward the_end", "--toward takes ulp or wait");
  expect_refused("--toward ulp --broken", "distances are those of valid scripts");
  expect_refused("--ranks-max 65", "--ranks-max");
  expect_refused("--findings 2 --keep-going", "--keep-going");
  expect_refused("--json-lines nowhere/tried.jsonl", "nowhere/tried.jsonl");
  expect_refused("--pairs-file nowhere/pairs.csv", "nowhere/pairs.csv");
  expect_refused("some.toml", "some.toml");
}

TEST_F(FuzzCommandTest, HelpShowsExamples) {
  const ProgramResult result = fuzz("--help");
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("--corpus"), HasSubstr("Examples:\n  lockstep fuzz ")));
}

}  // namespace lockstep::test
