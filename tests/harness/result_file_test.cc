// SPDX-License-Identifier: Apache-2.0
// Result files: complete, or not touched.
#include "harness/report/result_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <sstream>
#include <stdexcept>

#include "core/error.h"

namespace lockstep::test {

using harness::ResultFile;

namespace {

class ResultFileTest : public ::testing::Test {
 protected:
  ResultFileTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no folder");
    folder_ = pattern;
  }
  ~ResultFileTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::string content(const std::string& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    std::ostringstream out;
    out << file.rdbuf();
    return out.str();
  }

  std::int64_t num_entries() const {
    const std::filesystem::directory_iterator first(folder_);
    return std::distance(begin(first), end(first));
  }

  std::filesystem::path folder_;
};

}  // namespace

TEST_F(ResultFileTest, AppearsWithCommit) {
  const std::string big(100000, 'x');
  ResultFile file(path("r"));
  file.out() << big << 1 << std::flush << 2;
  EXPECT_EQ(num_entries(), 0) << "a file system without nameless files shows one here";
  file.commit();
  EXPECT_EQ(content("r"), big + "12");
  EXPECT_EQ(num_entries(), 1);
}

TEST_F(ResultFileTest, AnOlderFileStaysUntilCommit) {
  std::ofstream(path("r")) << "old and longer";
  {
    ResultFile file(path("r"));
    file.out() << "new" << std::flush;
    EXPECT_EQ(content("r"), "old and longer");
  }
  EXPECT_EQ(content("r"), "old and longer");
  EXPECT_EQ(num_entries(), 1);
  ResultFile file(path("r"));
  file.out() << "new";
  file.commit();
  EXPECT_EQ(content("r"), "new");
  EXPECT_EQ(num_entries(), 1);
}

TEST_F(ResultFileTest, ALinkKeepsBeingOne) {
  std::ofstream(path("target")) << "old";
  std::filesystem::create_symlink("target", path("link"));
  ResultFile file(path("link"));
  file.out() << "new";
  file.commit();
  EXPECT_EQ(content("target"), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(path("link")));
}

TEST_F(ResultFileTest, OthersMayReadItAsFarAsTheUmaskAllows) {
  const mode_t old_mask = umask(027);
  ResultFile file(path("r"));
  file.commit();
  umask(old_mask);
  struct stat info {};
  ASSERT_EQ(stat(path("r").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777U, 0640U);
}

TEST_F(ResultFileTest, WhatCannotBeWrittenIsRefusedAtOnce) {
  EXPECT_THROW(ResultFile(path("no_such_folder/r")), UsageError);
  EXPECT_THROW(ResultFile(folder_.string()), UsageError);
  EXPECT_THROW(ResultFile(""), UsageError);
  std::ofstream(path("file")) << "";
  EXPECT_THROW(ResultFile(path("file/r")), UsageError);
}

TEST_F(ResultFileTest, AFullDeviceIsAnError) {
  ResultFile file("/dev/full");
  file.out() << "x";
  try {
    file.commit();
    FAIL() << "nothing can be written to /dev/full";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("No space left"));
  }
}

}  // namespace lockstep::test
