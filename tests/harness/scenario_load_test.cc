// SPDX-License-Identifier: Apache-2.0
// Files and folders: what is found, in which order, and what cannot be read.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/harness/scenario_findings.h"

namespace lockstep::test {
namespace {

using harness::Finding;
using harness::load_scenarios;
using harness::ScenarioError;
using harness::ScenarioSet;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const char* const kGood = "schema = 1\nexpect.outcome = \"within_bound\"\n";

/// A folder of its own, removed at the end.
class ScenarioLoadTest : public ::testing::Test {
 protected:
  ScenarioLoadTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep_XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~ScenarioLoadTest() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = folder_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    return file.string();
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  /// "file: message" or "file:line:column: message", the folder left out.
  std::vector<std::string> findings_of_paths(const std::vector<std::string>& paths) const {
    std::vector<std::string> texts;
    try {
      load_scenarios(paths);
    } catch (const ScenarioError& error) {
      for (const Finding& finding : error.findings()) {
        std::string text = to_string(finding);
        const std::string prefix = folder_.string() + "/";
        if (text.rfind(prefix, 0) == 0) text = text.substr(prefix.size());
        texts.push_back(text);
      }
    }
    return texts;
  }

  std::filesystem::path folder_;
};

TEST_F(ScenarioLoadTest, WalksFoldersInSortedOrderAndTakesTomlOnly) {
  write("b/two.toml", kGood);
  write("b/one.toml", kGood);
  write("a.toml", std::string(kGood) + "[vary]\nseed = [1, 2]\n");
  write("notes.txt", "not a scenario");
  const ScenarioSet set = load_scenarios({folder_.string()});
  EXPECT_EQ(set.num_files, 3);
  std::vector<std::string> files;
  for (const harness::NamedCase& named : set.cases) files.push_back(named.file);
  EXPECT_THAT(files,
              ElementsAre(path("a.toml"), path("a.toml"), path("b/one.toml"), path("b/two.toml")));
}

TEST_F(ScenarioLoadTest, ReadsAFileOnceHoweverOftenItIsReached) {
  const std::string file = write("a.toml", kGood);
  const ScenarioSet set = load_scenarios({file, folder_.string(), folder_.string() + "/./a.toml"});
  EXPECT_EQ(set.num_files, 1);
  EXPECT_THAT(set.cases, SizeIs(1));
}

TEST_F(ScenarioLoadTest, TakesAnyNameThatIsGivenAsAFile) {
  EXPECT_THAT(load_scenarios({write("replay.txt", kGood)}).cases, SizeIs(1));
}

TEST_F(ScenarioLoadTest, ReportsTheFindingsOfAllFiles) {
  write("a.toml", "schema = 1\nworld.ranks = 0\n");
  write("b.toml", kGood);
  write("c.toml", "schema = 1\nseed = \n");
  write("d.toml", "");
  EXPECT_THAT(findings_of_paths({folder_.string(), path("none.toml")}),
              ElementsAre(HasSubstr("a.toml:2:15: world.ranks is 0"), HasSubstr("c.toml:2:8: not "),
                          HasSubstr("d.toml:1:1: the file says nothing"),
                          HasSubstr("none.toml: no such file")));
}

TEST_F(ScenarioLoadTest, NamesTheNearestFile) {
  write("hang.toml", kGood);
  EXPECT_THAT(findings_of_paths({path("hagn.toml")}),
              ElementsAre(HasSubstr("no such file or folder; did you mean 'hang.toml'?")));
}

TEST_F(ScenarioLoadTest, RefusesEmptyPathsAndFoldersWithoutScenarios) {
  EXPECT_THAT(findings_of_paths({}), ElementsAre(HasSubstr("no path")));
  EXPECT_THAT(findings_of_paths({""}), ElementsAre(HasSubstr("the path is empty")));
  EXPECT_THAT(findings_of_paths({folder_.string()}), ElementsAre(HasSubstr("no *.toml")));
}

TEST_F(ScenarioLoadTest, RefusesWhatIsNoFileAndWhatIsTooLarge) {
  ASSERT_EQ(::mkfifo(path("pipe.toml").c_str(), 0600), 0);
  EXPECT_THAT(findings_of_paths({path("pipe.toml")}), ElementsAre(HasSubstr("neither a file")));
  write("large.toml", std::string((4 << 20) + 1, '#'));
  EXPECT_THAT(findings_of_paths({path("large.toml")}), ElementsAre(HasSubstr("larger than")));
}

TEST_F(ScenarioLoadTest, SaysWhyAFileCannotBeRead) {
  // A regular file that even root cannot read from its start: address 0 is mapped nowhere.
  EXPECT_THAT(findings_of_paths({"/proc/self/mem"}),
              ElementsAre("/proc/self/mem: cannot be read: Input/output error"));
}

}  // namespace
}  // namespace lockstep::test
