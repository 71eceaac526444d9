// SPDX-License-Identifier: Apache-2.0
// `lockstep run` and `lockstep replay` as programs: options, files, exit statuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>
#include <regex>
#include <sstream>
#include <stdexcept>

#include "core/nccl_api.h"
#include "tests/support/run_program.h"

namespace lockstep::test {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

namespace {

/// Six cases that are as expected.
constexpr const char* kGood = R"(schema = 1
title = "Ranks equal one process"
[model]
widths = [4, 4, 2]
[data]
exact = true
[train]
steps = 1
loss = "dot"
optimizer = { kind = "sgd", lr = 0.125 }
[vary]
"world.ranks" = [1, 2, 4]
seed = [1, 2]
[expect]
outcome = "equal"
)";

/// The sum of gradients where their mean is due, and nobody said so.
constexpr const char* kBad = R"(schema = 1
title = "A sum is no mean"
[world]
ranks = 2
[model]
widths = [4, 4, 2]
[train]
steps = 2
[[fault]]
kind = "sum_not_mean"
[expect]
outcome = "within_bound"
)";

constexpr const char* kHang = R"(schema = 1
title = "Rank 1 leaves"
[world]
ranks = 2
[model]
widths = [4, 4, 2]
[train]
steps = 3
[[at]]
rank = 1
step = 1
leave = true
[expect]
outcome = "deadlock"
)";

class RunCommandTest : public ::testing::Test {
 protected:
  RunCommandTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no folder");
    folder_ = pattern;
    write("good.toml", kGood);
  }
  ~RunCommandTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  std::string content(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    std::ostringstream out;
    out << file.rdbuf();
    return out.str();
  }

  static ProgramResult lockstep(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), LOCKSTEP_BINARY);
    return run_program(arguments);
  }

  std::filesystem::path folder_;
};

std::string without_times(const std::string& json) {
  static const std::regex kTime(R"("seconds":[0-9.e+-]+)");
  return std::regex_replace(json, kTime, "\"seconds\":0");
}

/// Nothing was run, and a person is told why.
void expect_refused(const ProgramResult& result, const std::string& message) {
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err, HasSubstr(message));
}

}  // namespace

TEST_F(RunCommandTest, CasesAsExpectedEndWithTheCountsAndStatus0) {
  const ProgramResult result = lockstep({"run", path("good.toml")});
  EXPECT_EQ(result.exit_status, 0) << result.out << result.err;
  EXPECT_THAT(result.out, StartsWith("ok   " + path("good.toml") + ": 6 cases: 6 equal\n"));
  EXPECT_THAT(result.out, EndsWith("\n6 passed, 0 failed, 0 skipped\n"));
  EXPECT_THAT(result.err, IsEmpty()) << "progress is for terminals only";
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b"))) << "colours are for terminals only";
}

TEST_F(RunCommandTest, AFailureEndsWithStatus1AndACommandThatShowsItAgain) {
  write("bad.toml", kBad);
  const ProgramResult result = lockstep({"run", path("good.toml"), path("bad.toml")});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("first divergence: in step 0, phase "),
                                HasSubstr("again: lockstep replay " + path("bad.toml") + "\n"),
                                EndsWith("\n6 passed, 1 failed, 0 skipped\n")));
  const ProgramResult again = lockstep({"replay", path("bad.toml")});
  EXPECT_EQ(again.exit_status, 1);
  EXPECT_THAT(again.out,
              AllOf(HasSubstr("first divergence: in step 0, phase "), HasSubstr("\nTrace:\n")));
}

TEST_F(RunCommandTest, JsonDoesNotDependOnTheNumberOfJobs) {
  write("bad.toml", kBad);
  write("hang.toml", kHang);
  std::vector<std::string> texts;
  for (const char* jobs : {"1", "2", "3"}) {
    lockstep({"run", folder_.string(), "--jobs", jobs, "--json", path("r.json")});
    texts.push_back(without_times(content("r.json")));
  }
  lockstep({"run", folder_.string(), "--in-process", "--json", path("r.json")});
  texts.push_back(without_times(content("r.json")));
  EXPECT_EQ(nlohmann::json::parse(texts[0]).at("cases").size(), 8U);
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
}

TEST_F(RunCommandTest, JsonOnTheStandardOutputIsAloneThere) {
  const ProgramResult result = lockstep({"run", path("good.toml"), "--json", "-"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_EQ(nlohmann::json::parse(result.out).at("summary").at("passed"), 6);
  EXPECT_THAT(result.err, EndsWith("6 passed, 0 failed, 0 skipped\n"));
}

TEST_F(RunCommandTest, WritesJunit) {
  lockstep({"run", path("good.toml"), "--junit", path("r.xml")});
  pugi::xml_document document;
  ASSERT_TRUE(document.load_string(content("r.xml").c_str()));
  EXPECT_EQ(document.child("testsuites").attribute("tests").as_int(), 6);
}

TEST_F(RunCommandTest, AResultFileThatCannotBeWrittenIsAnErrorBeforeAnythingRuns) {
  for (const char* option : {"--json", "--junit"}) {
    expect_refused(lockstep({"run", path("good.toml"), option, path("nowhere/r")}), "nowhere/r");
  }
  expect_refused(lockstep({"run", path("good.toml"), "--json", path("r"), "--junit", path("r")}),
                 "cannot both write");
  EXPECT_FALSE(std::filesystem::exists(path("r")));
}

TEST_F(RunCommandTest, AnInvalidFileMeansThatNothingRunsAndNoResultIsTouched) {
  write("wrong.toml", "schema = 1\ntitle = 7\n");
  write("r.json", "old");
  expect_refused(lockstep({"run", folder_.string(), "--json", path("r.json")}), "wrong.toml:2:");
  EXPECT_EQ(content("r.json"), "old");
}

TEST_F(RunCommandTest, RefusesOptionsThatMakeNoSense) {
  const std::string file = path("good.toml");
  expect_refused(lockstep({"run"}), "lockstep run scenarios/quickstart");
  expect_refused(lockstep({"run", file, "--filter", "no such case"}), "no case matches");
  expect_refused(lockstep({"run", file, "--filter", "("}), "regular expression");
  if (!why_no_nccl().empty()) {
    expect_refused(lockstep({"run", file, "--backend", "nccl"}),
                   "--backend nccl: " + why_no_nccl());
  }
  expect_refused(lockstep({"run", file, "--backend", "golo"}), "did you mean 'gloo'");
  expect_refused(lockstep({"run", file, "--sync", "telepathy"}), "unknown sync");
  expect_refused(lockstep({"run", file, "--against", "flat"}), "--against takes torch");
  expect_refused(lockstep({"run", file, "--hang-after", "3"}), "--hang-after");
  for (const char* shard : {"3/2", "0/2", "1", "1/2x", "a/b", "/", "-1/2", ""}) {
    expect_refused(lockstep({"run", file, "--shard", shard}), "shard");
  }
  for (const char* seed : {"9223372036854775808", "18446744073709551616", "1.5", "", "x"}) {
    const std::string message = "from 0 to 9223372036854775807, not '" + std::string(seed) + "'";
    expect_refused(lockstep({"run", file, "--seed", seed}), message);
    expect_refused(lockstep({"replay", file, "--case", "1", "--seed", seed}), message);
  }
  expect_refused(lockstep({"run", file, "--jobs", "0"}), "jobs");
  expect_refused(lockstep({"run", file, "--seed", "-1"}), "seed");
  expect_refused(lockstep({"run", file, "--case-timeout", "0"}), "case-timeout");
}

TEST_F(RunCommandTest, ShardsFiltersAndSeedsSelect) {
  const auto passed = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"run", path("good.toml"), "--json", "-"});
    const auto summary = nlohmann::json::parse(lockstep(options).out).at("summary");
    return summary.at("passed").get<int>();
  };
  EXPECT_EQ(passed({"--shard", "1/4"}), 2);
  EXPECT_EQ(passed({"--shard", "4/4"}), 1);
  EXPECT_EQ(passed({"--shard", "7/7"}), 0) << "an empty shard is no mistake";
  EXPECT_EQ(passed({"--filter", "ranks=4"}), 2);
  EXPECT_EQ(passed({"--seed", "5"}), 3) << "two seeds of three worlds become one each";
  EXPECT_EQ(passed({"--sync", "flat", "--filter", "ranks=2"}), 2);
}

TEST_F(RunCommandTest, ReplayDrawsWhoWaitsForWhom) {
  write("hang.toml", kHang);
  const ProgramResult result =
      lockstep({"replay", path("hang.toml"), "--no-trace", "--dot", path("graph.dot")});
  EXPECT_EQ(result.exit_status, 0) << result.out << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("rank 0: waits in "), HasSubstr("rank 1: left the training loop"),
                    Not(HasSubstr("Trace:"))));
  EXPECT_THAT(content("graph.dot"), StartsWith("digraph"));
}

TEST_F(RunCommandTest, ReplayTakesACaseByNameOrNumber) {
  const std::string file = path("good.toml");
  expect_refused(lockstep({"replay", file}), "stands for 6 cases");
  expect_refused(lockstep({"replay", file, "--case", "7"}), "cases 1 to 6");
  expect_refused(lockstep({"replay", file, "--case", "0"}), "cases 1 to 6");
  expect_refused(lockstep({"replay", file, "--case", "what"}), "no case 'what'");
  const ProgramResult by_number = lockstep({"replay", file, "--case", "6"});
  EXPECT_EQ(by_number.exit_status, 0) << by_number.err;
  // The first line is the verdict and the case's label, "FILE [NAME]".
  std::smatch name;
  ASSERT_TRUE(std::regex_search(by_number.out, name, std::regex(R"(^ok .*\[(.*)\]\n)")));
  const ProgramResult by_name = lockstep({"replay", file, "--case", name[1]});
  EXPECT_EQ(by_name.out, by_number.out);
}

}  // namespace lockstep::test
