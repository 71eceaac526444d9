// SPDX-License-Identifier: Apache-2.0
// The directory in which ranks meet: who may use it, who is refused, what is left behind.
#include "core/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <utility>

#include "core/error.h"
#include "tests/contract/rank_threads.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr milliseconds kForever{600'000};

GroupRendezvousOptions member(const RendezvousDirectory& directory, std::int64_t rank,
                              std::int64_t world_size, milliseconds timeout = kForever) {
  GroupRendezvousOptions options;
  options.directory = directory.path();
  options.token = directory.token();
  options.rank = rank;
  options.world_size = world_size;
  options.address = "127.0.0.1";
  options.timeout = timeout;
  return options;
}

unsigned mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 07777U;
}

TEST(RendezvousDirectoryTest, IsPrivateAndGoneAtTheEndWithAllItHeld) {
  std::string path;
  {
    const auto directory = RendezvousDirectory::create();
    path = directory.path();
    EXPECT_EQ(mode_of(path), 0700U);
    EXPECT_EQ(directory.token().size(), 32U);
    GroupRendezvous(member(directory, 0, 1)).meet();
    EXPECT_FALSE(fs::is_empty(path));
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(RendezvousDirectoryTest, HasANameAndATokenOfItsOwn) {
  const auto first = RendezvousDirectory::create(), second = RendezvousDirectory::create();
  EXPECT_NE(first.path(), second.path());
  EXPECT_NE(first.token(), second.token());
}

TEST(RendezvousDirectoryTest, IsRemovedOnceByItsLastOwner) {
  auto first = RendezvousDirectory::create();
  const std::string path = first.path();
  {
    const RendezvousDirectory second = std::move(first);
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(RendezvousDirectoryTest, IsLeftAloneByAForkedCopy) {
  auto directory = RendezvousDirectory::create();
  const pid_t child = ::fork();
  if (child == 0) {
    directory.remove();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(fs::exists(directory.path()));
}

TEST(RendezvousDirectoryTest, CanBeAdoptedFromAProcessThatDied) {
  const std::string path = fs::temp_directory_path() / "lockstep.adopt.XXXXXX";
  std::string made = path;
  ASSERT_NE(::mkdtemp(made.data()), nullptr);
  { const auto adopted = RendezvousDirectory::adopt(made, "token"); }
  EXPECT_FALSE(fs::exists(made));
}

TEST(RendezvousDirectoryTest, CannotBeMadeWhereThereIsNoFolder) {
  EXPECT_THAT(message_of<UsageError>([] { RendezvousDirectory::create("/nonexistent"); }),
              AllOf(HasSubstr("/nonexistent"), HasSubstr("No such file")));
}

TEST(RendezvousDirectoryTest, OneThatOthersMayEnterIsRefused) {
  const auto directory = RendezvousDirectory::create();
  for (const mode_t mode : {0750, 0701, 0777}) {
    ASSERT_EQ(::chmod(directory.path().c_str(), mode), 0);
    EXPECT_THAT(message_of<UsageError>([&] { check_rendezvous_directory(directory.path()); }),
                AllOf(HasSubstr(directory.path()), HasSubstr("chmod 700")));
  }
  ASSERT_EQ(::chmod(directory.path().c_str(), 0700), 0);
  EXPECT_NO_THROW(check_rendezvous_directory(directory.path()));
}

TEST(RendezvousDirectoryTest, ALinkOrAFileOrNothingIsRefused) {
  const auto directory = RendezvousDirectory::create();
  const std::string link = directory.path() + "/link", file = directory.path() + "/file";
  ASSERT_EQ(::symlink(directory.path().c_str(), link.c_str()), 0);
  std::ofstream(file) << "x";
  EXPECT_THAT(message_of<UsageError>([&] { check_rendezvous_directory(link); }),
              HasSubstr("is not a directory"));
  EXPECT_THAT(message_of<UsageError>([&] { check_rendezvous_directory(file); }),
              HasSubstr("is not a directory"));
  EXPECT_THAT(message_of<UsageError>([&] { check_rendezvous_directory(file + "/none"); }),
              HasSubstr("Not a directory"));
}

TEST(RendezvousDirectoryTest, OneOfAnotherUserIsRefused) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can give a directory away";
  }
  const auto directory = RendezvousDirectory::create();
  ASSERT_EQ(::chown(directory.path().c_str(), 65534, 65534), 0);
  EXPECT_THAT(message_of<UsageError>([&] { check_rendezvous_directory(directory.path()); }),
              HasSubstr("belongs to user 65534"));
}

TEST(GroupRendezvousTest, AllRanksLearnAboutAll) {
  const auto directory = RendezvousDirectory::create();
  rethrow_any(run_threads(4, [&](std::int64_t rank) {
    GroupRendezvous rendezvous(member(directory, rank, 4));
    const auto records = rendezvous.meet();
    ASSERT_EQ(records.size(), 4U);
    for (std::int64_t peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(records[static_cast<std::size_t>(peer)].rank, peer);
      EXPECT_EQ(records[static_cast<std::size_t>(peer)].pid, ::getpid());
    }
    rendezvous.set(std::to_string(rank), {'v', static_cast<char>('0' + rank)});
    EXPECT_EQ(rendezvous.get(std::to_string((rank + 1) % 4)),
              (std::vector<char>{'v', static_cast<char>('0' + (rank + 1) % 4)}));
  }));
}

TEST(GroupRendezvousTest, AnotherRunsTokenIsRefusedAtOnce) {
  const auto directory = RendezvousDirectory::create();
  GroupRendezvousOptions stranger = member(directory, 1, 2);
  stranger.token = "0123";
  EXPECT_THAT(message_of<UsageError>([&] { GroupRendezvous(stranger).meet(); }),
              AllOf(HasSubstr("rank 1"), HasSubstr(directory.path()),
                    HasSubstr("belongs to run " + directory.token()), HasSubstr("this is run 0123"),
                    HasSubstr("stale")));
  // The stranger has left no trace that could disturb the directory's own run.
  rethrow_any(run_threads(
      2, [&](std::int64_t rank) { GroupRendezvous(member(directory, rank, 2)).meet(); }));
}

TEST(GroupRendezvousTest, OfRunsThatRaceForABareDirectoryExactlyOneGetsIt) {
  std::string path = fs::temp_directory_path() / "lockstep.race.XXXXXX";
  ASSERT_NE(::mkdtemp(path.data()), nullptr);
  const auto owner = RendezvousDirectory::adopt(path, "unused");
  std::atomic<int> num_refused{0};
  // Ranks 0 to 3 of run "a" and of run "b".
  rethrow_any(run_threads(8, [&](std::int64_t thread) {
    GroupRendezvousOptions options = member(owner, thread % 4, 4);
    options.token = thread < 4 ? "a" : "b";
    try {
      GroupRendezvous(options).meet();
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("belongs to run"));
      ++num_refused;
    }
  }));
  EXPECT_EQ(num_refused, 4);
}

TEST(GroupRendezvousTest, ARankThatIsTakenIsRefusedAndTheWaitingOnesAreTold) {
  const auto directory = RendezvousDirectory::create();
  // Ranks {0, 1} and {0, 1} of a world of four: two are taken, two will never come.
  std::vector<std::string> messages(4);
  run_threads(4, [&](std::int64_t thread) {
    messages[static_cast<std::size_t>(thread)] =
        message_of<UsageError>([&] { GroupRendezvous(member(directory, thread % 2, 4)).meet(); });
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("is taken by process"), HasSubstr("wants it too")));
  }
}

TEST(GroupRendezvousTest, AnExcessRankDoesNotDisturbACompleteGroup) {
  const auto directory = RendezvousDirectory::create();
  rethrow_any(run_threads(
      2, [&](std::int64_t rank) { GroupRendezvous(member(directory, rank, 2)).meet(); }));
  EXPECT_THAT(message_of<UsageError>([&] { GroupRendezvous(member(directory, 1, 2)).meet(); }),
              HasSubstr("rank 1 of group 'world'"));
  EXPECT_THAT(message_of<UsageError>([&] { GroupRendezvous(member(directory, 2, 2)).meet(); }),
              HasSubstr("rank 2 is outside 0..1"));
}

TEST(GroupRendezvousTest, WorldSizesThatDifferAreToldToEveryRank) {
  const auto directory = RendezvousDirectory::create();
  std::vector<std::string> messages(3);
  run_threads(3, [&](std::int64_t rank) {
    messages[static_cast<std::size_t>(rank)] = message_of<UsageError>(
        [&] { GroupRendezvous(member(directory, rank, rank == 2 ? 3 : 4)).meet(); });
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("world sizes differ"), HasSubstr("was told 3"),
                               HasSubstr("told 4")));
  }
}

TEST(GroupRendezvousTest, RanksThatDoNotComeAreNamed) {
  const auto directory = RendezvousDirectory::create();
  EXPECT_THAT(
      message_of<TimedOut>(
          [&] { GroupRendezvous(member(directory, 1, 4, milliseconds(20))).meet(); }),
      AllOf(HasSubstr("rank 1: after 20 ms only 1 of 4 ranks"), HasSubstr("missing: 0, 2, 3")));
}

TEST(GroupRendezvousTest, ARankThatComesTooLateIsToldThatTheOthersHaveLeft) {
  const auto directory = RendezvousDirectory::create();
  EXPECT_THROW(GroupRendezvous(member(directory, 0, 2, milliseconds(1))).meet(), TimedOut);
  EXPECT_THAT(message_of<TimedOut>([&] { GroupRendezvous(member(directory, 1, 2)).meet(); }),
              AllOf(HasSubstr("rank 1: the group cannot form: rank 0: after 1 ms only 1 of 2"),
                    HasSubstr("missing: 1")));
}

TEST(GroupRendezvousTest, ARankThatWaitsIsToldThatAnotherHasLeft) {
  const auto directory = RendezvousDirectory::create();
  EXPECT_THROW(GroupRendezvous(member(directory, 0, 3, milliseconds(1))).meet(), TimedOut);
  EXPECT_THAT(message_of<TimedOut>([&] { GroupRendezvous(member(directory, 1, 3)).meet(); }),
              HasSubstr("rank 1: the group cannot form: rank 0: after 1 ms only 1 of 3"));
}

TEST(GroupRendezvousTest, ADirectoryThatVanishesIsAnError) {
  auto directory = RendezvousDirectory::create();
  std::string message;
  run_threads(2, [&](std::int64_t thread) {
    if (thread == 0) {
      message = message_of<UsageError>([&] { GroupRendezvous(member(directory, 0, 2)).meet(); });
    } else {
      while (!fs::exists(directory.path() + "/world.rank.0")) {
        std::this_thread::yield();
      }
      std::error_code ignored;
      fs::remove_all(directory.path(), ignored);
    }
  });
  EXPECT_THAT(message, HasSubstr(directory.path()));
}

TEST(GroupRendezvousTest, ARecordThatNobodyCanReadIsToldToThoseThatComeLater) {
  const auto directory = RendezvousDirectory::create();
  const std::string record = directory.path() + "/world.rank.2";
  std::ofstream(record) << "of another version";
  EXPECT_THAT(message_of<LaunchError>([&] { GroupRendezvous(member(directory, 1, 3)).meet(); }),
              HasSubstr("rank 1: cannot read world.rank.2"));
  fs::remove(record);
  std::vector<std::string> messages(2);
  run_threads(2, [&](std::int64_t thread) {
    messages[static_cast<std::size_t>(thread)] =
        message_of<LaunchError>([&] { GroupRendezvous(member(directory, 2 * thread, 3)).meet(); });
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, HasSubstr("the group cannot form: rank 1: cannot read world.rank.2"));
  }
}

TEST(GroupRendezvousTest, AStaleRankOfADeadProcessIsSaidToBeDead) {
  const auto directory = RendezvousDirectory::create();
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      GroupRendezvous(member(directory, 0, 2, milliseconds(1))).meet();
    } catch (const TimedOut&) {
    }
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_THAT(message_of<UsageError>([&] { GroupRendezvous(member(directory, 0, 2)).meet(); }),
              AllOf(HasSubstr("process " + std::to_string(child)), HasSubstr("no longer runs")));
}

TEST(GroupRendezvousTest, LoopbackIsRefusedAcrossMachines) {
  const auto directory = RendezvousDirectory::create();
  std::ofstream(directory.path() + "/world.rank.1")
      << "lockstep-rank-1 1 2 1 another-machine 192.0.2.1\n";
  EXPECT_THAT(message_of<UsageError>([&] { GroupRendezvous(member(directory, 0, 2)).meet(); }),
              AllOf(HasSubstr("127.0.0.1"), HasSubstr("another-machine"),
                    HasSubstr("choose an interface")));
}

TEST(GroupRendezvousTest, WrongOptionsAreRefused) {
  const auto directory = RendezvousDirectory::create();
  EXPECT_THAT(message_of<UsageError>([&] { GroupRendezvous(member(directory, 0, 0)); }),
              HasSubstr("world size 0"));
  EXPECT_THAT(message_of<UsageError>([&] { GroupRendezvous(member(directory, -1, 2)); }),
              HasSubstr("rank -1"));
  auto options = member(directory, 0, 1);
  options.token.clear();
  EXPECT_THAT(message_of<UsageError>([&] { GroupRendezvous{options}; }), HasSubstr("token"));
  options = member(directory, 0, 1);
  options.group = "../x";
  EXPECT_THAT(message_of<UsageError>([&] { GroupRendezvous{options}; }), HasSubstr("'../x'"));
}

}  // namespace
}  // namespace lockstep::test
