// SPDX-License-Identifier: Apache-2.0
// `lockstep simulate`, and timing files in `run`, `check`, `list` and `replay`, as programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/run_program.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kFile = R"(schema = 1
kind = "timing"
title = "Two layers"
[network]
algorithm = "ring"
latency_us = 0.0
bandwidth_gbit_per_s = 8.0
[jitter]
compute = 0.1
network = 0.1
[[layer]]
name = "layer"
count = 2
parameters = [100_000]
forward_us = 100.0
[vary]
"world.ranks" = [2, 4]
[[expect]]
claim = "rises"
over = "world.ranks"
)";

class SimulateCommandTest : public ::testing::Test {
 protected:
  SimulateCommandTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~SimulateCommandTest() override { std::filesystem::remove_all(folder_); }

  static ProgramResult lockstep(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), LOCKSTEP_BINARY);
    return run_program(arguments);
  }

  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path) << text;
    return path;
  }

  std::filesystem::path folder_;
};

TEST_F(SimulateCommandTest, PredictsTheSameBitsEveryTime) {
  const std::string file = write("good.toml", kFile);
  const ProgramResult result = lockstep({"simulate", file, "-v", "--json", "-"});
  EXPECT_EQ(result.exit_status, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("Two layers"), HasSubstr("[ranks=4]"),
                                HasSubstr("time line of rank 0"), HasSubstr("rises over")));
  EXPECT_THAT(result.out, HasSubstr("\"timeline\""));
  EXPECT_EQ(lockstep({"simulate", file, "-v", "--json", "-"}).out, result.out);
  const ProgramResult unfolded = lockstep({"simulate", file, "--unfolded"});
  EXPECT_EQ(unfolded.out, lockstep({"simulate", file}).out);
}

TEST_F(SimulateCommandTest, ABrokenClaimFailsWithStatusOne) {
  const std::string file =
      write("bad.toml", kFile + "[[expect]]\nclaim = \"bounds\"\nmax = 0.001\n");
  const ProgramResult result = lockstep({"simulate", file});
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.out, HasSubstr("expected at most 0.001: over by"));
}

TEST_F(SimulateCommandTest, OtherCommandsKnowTimingFiles) {
  const std::string file = write("good.toml", kFile);
  EXPECT_EQ(lockstep({"check", file}).out, "1 file, 1 case: ok\n");
  EXPECT_EQ(lockstep({"list", file}).out, file + "\n");
  const ProgramResult run = lockstep({"run", file});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("1 case: 1 predicted"), HasSubstr("1 passed, 0 failed")));
  const ProgramResult replay = lockstep({"replay", file});
  EXPECT_EQ(replay.exit_status, 2);
  EXPECT_THAT(replay.err, HasSubstr("lockstep simulate " + file));
}

TEST_F(SimulateCommandTest, RunJudgesClaimsAndSaysHowToLookAgain) {
  const std::string file =
      write("bad.toml", kFile + "[[expect]]\nclaim = \"bounds\"\nmax = 0.001\n");
  const ProgramResult run = lockstep({"run", file});
  EXPECT_EQ(run.exit_status, 1);
  EXPECT_THAT(run.out, AllOf(HasSubstr("not as expected: bounds: step_ms is"),
                             HasSubstr("again: lockstep simulate " + file)));
  EXPECT_THAT(lockstep({"run", file, "--filter", "good"}).err, HasSubstr("no case matches"));
}

TEST_F(SimulateCommandTest, WrongUsageIsExplained) {
  const std::string scenario =
      write("scenario.toml", "schema = 1\n[expect]\noutcome = \"within_bound\"\n");
  EXPECT_THAT(lockstep({"simulate", scenario}).err, HasSubstr("expected one timing file"));
  const std::string file = write("good.toml", kFile);
  EXPECT_THAT(lockstep({"simulate", file, "--only", "ranks=8"}).err,
              HasSubstr("no point of " + file + " matches --only 'ranks=8'"));
  EXPECT_THAT(lockstep({"simulate", file, "--measure"}).err, HasSubstr("no layer has a block"));
  const std::string many = write("many.toml", kFile + "[world]\nranks_per_node = 2\n");
  EXPECT_EQ(lockstep({"simulate", many, "--unfolded"}).exit_status, 0);
}

TEST_F(SimulateCommandTest, SearchesTheBestBucketCap) {
  const ProgramResult result =
      lockstep({"simulate", write("good.toml", kFile), "--best-bucket-cap", "--only", "ranks=2"});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("best bucket cap:"), HasSubstr("times as quick as"),
                                Not(HasSubstr("rises"))));
}

}  // namespace
}  // namespace lockstep::test
