// SPDX-License-Identifier: Apache-2.0
// `lockstep check`, `list` and `new` as programs, and the command without a subcommand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/run_program.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class ScenarioCommandTest : public ::testing::Test {
 protected:
  ScenarioCommandTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~ScenarioCommandTest() override { std::filesystem::remove_all(folder_); }

  static ProgramResult lockstep(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), LOCKSTEP_BINARY);
    return run_program(arguments);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }

  static std::string read(const std::string& file) {
    std::ifstream stream(file);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  std::filesystem::path folder_;
};

TEST_F(ScenarioCommandTest, WithoutArgumentsShowsUsageAndAnExample) {
  const ProgramResult result = lockstep({});
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("lockstep [OPTIONS] SUBCOMMAND"),  // CLI11's wording
                                HasSubstr("Example: lockstep")));
  EXPECT_THAT(result.out, IsEmpty());
}

TEST_F(ScenarioCommandTest, NamesTheNearestSubcommand) {
  const ProgramResult result = lockstep({"chekc", "x.toml"});
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("unknown command 'chekc'"), HasSubstr("did you mean 'check'?")));
}

TEST_F(ScenarioCommandTest, NamesTheNearestOption) {
  const ProgramResult result = lockstep({"run", "x.toml", "--fail-fats"});
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("unknown option '--fail-fats' of `lockstep run`; did you "
                                          "mean '--fail-fast'?"),
                                HasSubstr("Run `lockstep run --help`")));
}

TEST_F(ScenarioCommandTest, EveryCommandHasHelpWithAnExample) {
  for (const std::string command : {"check", "list", "new"}) {
    const ProgramResult result = lockstep({command, "--help"});
    EXPECT_EQ(result.exit_status, 0);
    EXPECT_THAT(result.out, HasSubstr("Example: lockstep " + command));
  }
  EXPECT_EQ(lockstep({"--help"}).exit_status, 0);
}

TEST_F(ScenarioCommandTest, CheckCountsFilesAndCases) {
  write("a.toml",
        "schema = 1\nexpect.outcome = \"within_bound\"\n[vary]\nseed = { first = 1, count = 5 }\n");
  write("b.toml", "schema = 1\nworld.ranks = 1\n");
  const ProgramResult result = lockstep({"check", folder_.string()});
  EXPECT_EQ(result.exit_status, 0);
  EXPECT_EQ(result.out, "2 files, 6 cases: ok\n");
  EXPECT_THAT(result.err, IsEmpty());
}

TEST_F(ScenarioCommandTest, CheckNamesEveryMistakeOnStandardError) {
  const std::string file = write("a.toml", "schema = 1\nworld.rnks = 1\nseed = -1\n");
  const ProgramResult result = lockstep({"check", file, path("none.toml")});
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.out, IsEmpty());
  EXPECT_THAT(result.err,
              AllOf(HasSubstr(file + ":2:7: unknown key 'rnks'"),
                    HasSubstr(file + ":3:8: seed is -1"), HasSubstr("none.toml: no such file")));
  EXPECT_EQ(lockstep({"check"}).exit_status, 2);
}

TEST_F(ScenarioCommandTest, ListPrintsOneCasePerLineAndTheirTextOnRequest) {
  const std::string file =
      write("a.toml", "schema = 1\nworld.ranks = 1\n[vary]\ntrain.steps = [1, 2]\n");
  EXPECT_EQ(lockstep({"list", file}).out, file + " [steps=1]\n" + file + " [steps=2]\n");
  const std::string toml = lockstep({"list", "--toml", file}).out;
  EXPECT_THAT(toml, StartsWith("# " + file + " [steps=1]\nschema = 1\n\n[world]\nranks = 1\n"));
  // The printed text of the second case is a scenario again.
  const std::string second = toml.substr(toml.find("# ", 1));
  EXPECT_EQ(lockstep({"check", write("second.toml", second)}).out, "1 file, 1 case: ok\n");
}

TEST_F(ScenarioCommandTest, NewWritesAValidFileOnce) {
  const ProgramResult first = lockstep({"new", path("mine")});
  EXPECT_EQ(first.exit_status, 0);
  EXPECT_EQ(lockstep({"check", path("mine.toml")}).exit_status, 0);
  write("mine.toml", "changed");
  const ProgramResult second = lockstep({"new", path("mine.toml")});
  EXPECT_EQ(second.exit_status, 2);
  EXPECT_THAT(second.err, HasSubstr("mine.toml exists already"));
  EXPECT_EQ(read(path("mine.toml")), "changed");
}

TEST_F(ScenarioCommandTest, NewSaysWhyItCannotWrite) {
  const ProgramResult result = lockstep({"new", path("missing/mine")});
  EXPECT_EQ(result.exit_status, 2);
  EXPECT_THAT(result.err, HasSubstr("No such file or directory"));
  EXPECT_EQ(lockstep({"new", path("")}).exit_status, 2);
  for (const char* name : {"two\nlines", "a\ttab", "not \xff UTF-8"}) {
    const ProgramResult refused = lockstep({"new", path(name)});
    EXPECT_EQ(refused.exit_status, 2);
    EXPECT_THAT(refused.err, HasSubstr("use printable ones"));
    EXPECT_FALSE(std::filesystem::exists(path(name) + ".toml"));
  }
}

}  // namespace
}  // namespace lockstep::test
