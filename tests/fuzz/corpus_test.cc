// SPDX-License-Identifier: Apache-2.0
// What a campaign keeps on disk.
#include "harness/fuzz/campaign/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>

#include "core/error.h"
#include "harness/fuzz/shrink/finding.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::harness::fuzz {
namespace {

using test::TemporaryFolder;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

TEST(Corpus, NamesAFindingByItsKindAndText) {
  const TemporaryFolder folder;
  const std::string path =
      write_finding(folder.path("new/corpus"), "diverged/replay/gradient", {"why"}, "schema = 1\n");
  EXPECT_THAT(path, MatchesRegex(".*/new/corpus/diverged-replay-gradient-[0-9a-f]+\\.toml"));
  EXPECT_EQ(TemporaryFolder::content(path), "# why\nschema = 1\n");
}

TEST(Corpus, AFileSaysByWhichPropertyItWasFound) {
  const TemporaryFolder folder;
  EXPECT_EQ(property_of_file(write_finding(folder.path(), "property/no_sync", {}, "a\n")),
            "no_sync");
  EXPECT_EQ(property_of_file(write_finding(folder.path(), "diverged/replay", {}, "a\n")), "");
  EXPECT_EQ(property_of_file("property-no_sync.toml"), "");
}

TEST(Corpus, NeverReplacesOneFindingByAnother) {
  const TemporaryFolder folder;
  const std::string first = write_finding(folder.path(), "deadlock", {"first"}, "a\n");
  EXPECT_NE(write_finding(folder.path(), "deadlock", {}, "b\n"), first);
  // The same text again: the file stays as it is.
  EXPECT_EQ(write_finding(folder.path(), "deadlock", {"second"}, "a\n"), first);
  EXPECT_EQ(TemporaryFolder::content(first), "# first\na\n");
  EXPECT_THAT(folder.names(), SizeIs(2));
}

TEST(Corpus, AFolderThatCannotBeMadeIsAnError) {
  const TemporaryFolder folder;
  folder.write("file", "");
  EXPECT_THROW(write_finding(folder.path("file/below"), "deadlock", {}, "a\n"), UsageError);
}

TEST(Corpus, InputsGoAwayWithTheirCampaign) {
  const TemporaryFolder folder;
  {
    RunningInputs running(folder.path());
    running.begins(0, {"", "", "a long text\n"});
    running.begins(1, {"", "", "b\n"});
    running.begins(0, {"", "", "c\n"});
    ASSERT_THAT(folder.names(), SizeIs(2));
    EXPECT_EQ(TemporaryFolder::content(folder.path(folder.names()[0])), "c\n");
    EXPECT_EQ(TemporaryFolder::content(folder.path(folder.names()[1])), "b\n");
  }
  EXPECT_THAT(folder.names(), IsEmpty());
}

TEST(Corpus, FindsInputsOfACampaignThatWasKilledAndNotOfOneThatRuns) {
  const TemporaryFolder folder;
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const pid_t campaign = fork();
  if (campaign == 0) {
    RunningInputs running(folder.path());
    running.begins(0, {"", "", "in progress\n"});
    if (write(ends[1], "x", 1) == 1) pause();
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  EXPECT_THAT(leftovers(folder.path()), IsEmpty());
  kill(campaign, SIGKILL);
  waitpid(campaign, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
  const std::vector<Leftover> found = leftovers(folder.path());
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].text, "in progress\n");
  EXPECT_EQ(found[0].path, folder.path(folder.names().at(0)));
}

TEST(Corpus, WhatAnotherOfTheSameProcessIdLeftBehindStays) {
  const TemporaryFolder folder;
  const std::string name = ".running-" + std::to_string(getpid()) + "-0";
  folder.write(name, "left behind\n");
  {
    RunningInputs running(folder.path());
    running.begins(0, {"", "", "in progress\n"});
    EXPECT_THAT(folder.names(), ElementsAre(name, name + "-1"));
    running.ends(0);
    EXPECT_THAT(folder.names(), ElementsAre(name));
    running.begins(0, {"", "", "the next\n"});
    EXPECT_EQ(TemporaryFolder::content(folder.path(name + "-1")), "the next\n");
  }
  EXPECT_THAT(folder.names(), ElementsAre(name));
  EXPECT_EQ(leftovers(folder.path()).at(0).text, "left behind\n");
}

TEST(Corpus, APipeOrAFolderIsNoLeftover) {
  const TemporaryFolder folder;
  ASSERT_EQ(mkfifo(folder.path(".running-1-0").c_str(), 0600), 0);
  ASSERT_EQ(mkdir(folder.path(".running-1-1").c_str(), 0700), 0);
  EXPECT_THAT(leftovers(folder.path()), IsEmpty());
  EXPECT_THAT(folder.names(), SizeIs(2));
}

TEST(Corpus, AnInputOfNothingIsNoLeftover) {
  const TemporaryFolder folder;
  folder.write(".running-1-0", "");
  folder.write("deadlock-1.toml", "x");
  EXPECT_THAT(leftovers(folder.path()), IsEmpty());
  EXPECT_THAT(folder.names(), ElementsAre("deadlock-1.toml"));
  EXPECT_THAT(leftovers(folder.path("nowhere")), IsEmpty());
}

}  // namespace
}  // namespace lockstep::harness::fuzz
