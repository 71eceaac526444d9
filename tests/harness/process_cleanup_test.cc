// SPDX-License-Identifier: Apache-2.0
// Whatever happens to an executor or its workers, no process and no file is left behind.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "harness/execute/process_executor.h"

namespace lockstep::harness {
namespace {

using ::testing::IsEmpty;

/// A new directory that TMPDIR names while this lives.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const char* before = std::getenv("TMPDIR");
    if (before != nullptr) {
      before_ = before;
    }
    path_ = (std::filesystem::temp_directory_path() / "lockstep-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(path_.data()), nullptr);
    ::setenv("TMPDIR", path_.c_str(), 1);
  }
  ~TemporaryDirectory() {
    if (before_) {
      ::setenv("TMPDIR", before_->c_str(), 1);
    } else {
      ::unsetenv("TMPDIR");
    }
    std::filesystem::remove_all(path_);
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    return names;
  }

 private:
  std::string path_;
  std::optional<std::string> before_;
};

/// A pipe whose other end is inherited by every process that this one starts, directly or not.
class InheritedPipe {
 public:
  InheritedPipe() {
    EXPECT_EQ(::pipe(fds_), 0);
    ::fcntl(fds_[0], F_SETFD, FD_CLOEXEC);
    ::setenv("LOCKSTEP_TEST_PIPE", std::to_string(fds_[1]).c_str(), 1);
  }
  ~InheritedPipe() {
    ::unsetenv("LOCKSTEP_TEST_PIPE");
    close_own_end();
    ::close(fds_[0]);
  }
  void close_own_end() {
    if (fds_[1] >= 0) {
      ::close(fds_[1]);
      fds_[1] = -1;
    }
  }
  /// What a process told about itself; empty once all of them have gone.
  std::optional<pid_t> next_pid() {
    pid_t pid = 0;
    ssize_t count = 0;
    do {
      count = ::read(fds_[0], &pid, sizeof(pid));
    } while (count < 0 && errno == EINTR);
    return count == sizeof(pid) ? std::optional<pid_t>(pid) : std::nullopt;
  }

 private:
  int fds_[2] = {-1, -1};
};

constexpr std::int64_t kRanks = 2;

/// Starts a process that runs a case titled `title`; see planted_worker.cc.
pid_t start_driver(const std::string& title) {
  const std::string ranks = std::to_string(kRanks);
  const pid_t pid = ::fork();
  if (pid == 0) {
    // A shell starts what runs in its background with these ignored, and that is inherited.
    ::signal(SIGINT, SIG_DFL);
    ::signal(SIGTERM, SIG_DFL);
    ::execl(LOCKSTEP_PLANTED_WORKER, LOCKSTEP_PLANTED_WORKER, "drive", title.c_str(), ranks.c_str(),
            nullptr);
    ::_exit(127);
  }
  return pid;
}

struct Death {
  int signal;
  const char* title;
};

std::string name_of(const ::testing::TestParamInfo<Death>& info) {
  std::string name = ::strsignal(info.param.signal);
  name += info.param.title;
  name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return !std::isalnum(c); }),
             name.end());
  return name;
}

class ParentDeathTest : public ::testing::TestWithParam<Death> {};

TEST_P(ParentDeathTest, LeavesNoProcessAndNoFile) {
  const TemporaryDirectory temporary;
  InheritedPipe pipe;
  const pid_t driver = start_driver(GetParam().title);
  ASSERT_GT(driver, 0);
  pipe.close_own_end();
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(pipe.next_pid().has_value()) << "a worker ended before it got to the point";
  }
  EXPECT_THAT(temporary.entries(), ::testing::SizeIs(1));
  ASSERT_EQ(::kill(driver, GetParam().signal), 0);
  // The end of the pipe is the end of every process that had inherited it.
  EXPECT_FALSE(pipe.next_pid().has_value());
  EXPECT_THAT(temporary.entries(), IsEmpty());
  int status = 0;
  ASSERT_EQ(::waitpid(driver, &status, 0), driver);
  EXPECT_EQ(WTERMSIG(status), GetParam().signal);
}

INSTANTIATE_TEST_SUITE_P(ProcessCleanup, ParentDeathTest,
                         ::testing::Values(Death{SIGKILL, "plant connect hold 0"},
                                           Death{SIGKILL, "plant run hold -1"},
                                           Death{SIGKILL, "plant run stop 1"},
                                           Death{SIGTERM, "plant run hold 0"},
                                           Death{SIGINT, "plant connect stop 1"}),
                         name_of);

TEST(ProcessCleanupTest, AnExecutorTakesEverythingWithIt) {
  const TemporaryDirectory temporary;
  std::vector<pid_t> pids;
  {
    ProcessExecutor executor({3'600.0, LOCKSTEP_PLANTED_WORKER});
    Case value;
    value.world.ranks = kRanks;
    executor.execute(compile_subject(value));
    pids = executor.pool().pids();
    EXPECT_THAT(temporary.entries(), ::testing::SizeIs(1));
    // What the ranks needed to find each other is gone already.
    EXPECT_TRUE(std::filesystem::is_empty(executor.pool().directory()));
  }
  EXPECT_THAT(pids, ::testing::SizeIs(kRanks));
  for (const pid_t pid : pids) {
    EXPECT_EQ(::kill(pid, 0), -1);
    EXPECT_EQ(errno, ESRCH);
  }
  EXPECT_THAT(temporary.entries(), IsEmpty());
}

TEST(ProcessCleanupTest, AWorkerKilledInTheMiddleOfACaseIsReportedAndTheOthersAreFreed) {
  const TemporaryDirectory temporary;
  InheritedPipe pipe;
  std::vector<pid_t> pids;
  harness::Run run;
  {
    ProcessExecutor executor({0.5, LOCKSTEP_PLANTED_WORKER});
    Case value;
    value.title = "plant run hold 1";
    value.world.ranks = kRanks;
    std::thread runs([&] { run = executor.execute(compile_subject(value)); });
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      pids.push_back(*pipe.next_pid());
    }
    // Either one may be the one that holds; the death of any must show.
    EXPECT_EQ(::kill(pids[0], SIGKILL), 0);
    runs.join();
  }
  std::int64_t num_crashed = 0;
  for (const RankRun& rank : run.ranks) {
    num_crashed += rank.ending == Ending::kCrashed ? 1 : 0;
    EXPECT_TRUE(rank.ending != Ending::kCrashed || rank.signal == SIGKILL);
  }
  EXPECT_EQ(num_crashed, 1);
  pipe.close_own_end();
  EXPECT_FALSE(pipe.next_pid().has_value());
  EXPECT_THAT(temporary.entries(), IsEmpty());
}

}  // namespace
}  // namespace lockstep::harness
