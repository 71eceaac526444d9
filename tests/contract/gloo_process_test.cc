// SPDX-License-Identifier: Apache-2.0
// Ranks in processes of their own: the same bits, and what the others see when one is stopped or
// killed.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/gloo_communicator.h"
#include "tests/contract/gloo_world.h"

namespace lockstep::test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr milliseconds kForever{600'000};
constexpr int kNumKills = 3;
constexpr std::int64_t kWorldSize = 3;
constexpr std::int64_t kNumel = 5000;
constexpr std::int64_t kLargeNumel = std::int64_t{16} << 20;
// What a worker is told to do: reduce `thirds`, or kLargeNumel zeros, or broadcast those from
// rank 2.
constexpr char kSmallOrder = 's', kLargeOrder = 'l', kBroadcastOrder = 'b';
// Where a worker finds its ends of the two pipes; above whatever a process opens by itself.
constexpr int kReportDescriptor = 200;
constexpr int kOrderDescriptor = 201;

at::Tensor thirds(std::int64_t rank) {
  return (at::arange(kNumel, at::kFloat) + static_cast<double>(rank)) / 3;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

void write_byte(int descriptor, char byte = kSmallOrder) {
  if (::write(descriptor, &byte, 1) != 1) {
    ::_exit(3);
  }
}

/// A rank in a process of its own: this very program, told to run the worker below.
class WorkerProcess {
 public:
  WorkerProcess(const RendezvousDirectory& directory, std::int64_t rank) {
    std::array<int, 2> to_parent{}, to_worker{};
    EXPECT_EQ(::pipe2(to_parent.data(), O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(to_worker.data(), O_CLOEXEC), 0);
    reports_ = to_parent[0];
    orders_ = to_worker[1];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to_parent[1], kReportDescriptor);
    posix_spawn_file_actions_adddup2(&actions, to_worker[0], kOrderDescriptor);
    // A worker's own report would only be mixed into this one's.
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    std::vector<std::string> variables = {"LOCKSTEP_TEST_RANK=" + std::to_string(rank),
                                          "LOCKSTEP_TEST_DIRECTORY=" + directory.path(),
                                          "LOCKSTEP_TEST_TOKEN=" + directory.token()};
    for (char** variable = environ; *variable != nullptr; ++variable) {
      variables.emplace_back(*variable);
    }
    std::vector<std::string> arguments = {"worker",
                                          "--gtest_filter=GlooWorker.DISABLED_IsARankOfItsOwn",
                                          "--gtest_also_run_disabled_tests", "--gtest_brief=1"};
    const auto pointers = [](std::vector<std::string>& strings) {
      std::vector<char*> result;
      for (std::string& string : strings) {
        result.push_back(string.data());
      }
      result.push_back(nullptr);
      return result;
    };
    EXPECT_EQ(::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, pointers(arguments).data(),
                            pointers(variables).data()),
              0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(to_parent[1]);
    ::close(to_worker[0]);
  }
  ~WorkerProcess() {
    signal(SIGKILL);
    join();
    ::close(reports_);
    ::close(orders_);
  }
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  /// Blocks until the worker has ended a collective; false if it ended itself instead.
  bool await_report() const {
    char byte = 0;
    return ::read(reports_, &byte, 1) == 1;
  }
  /// Lets the worker take part in one more collective.
  void order(char size = kSmallOrder) const { write_byte(orders_, size); }
  void signal(int number) const {
    if (pid_ > 0) {
      ::kill(pid_, number);
    }
  }
  /// The worker's exit status as of waitpid.
  int join() {
    int status = -1;
    if (pid_ > 0) {
      EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
      pid_ = -1;
    }
    return status;
  }

 private:
  pid_t pid_ = -1;
  int reports_ = -1, orders_ = -1;
};

std::unique_ptr<GlooCommunicator> join_world(std::int64_t rank, const std::string& directory,
                                             const std::string& token, milliseconds timeout) {
  GlooOptions options;
  options.rank = rank;
  options.world_size = kWorldSize;
  options.directory = directory;
  options.token = token;
  options.timeout = timeout;
  return make_gloo_communicator(options);
}

// Not a test of its own: the body of the worker processes. Connects, reports, and then takes part
// in one all_reduce for each order until there are no more orders.
TEST(GlooWorker, DISABLED_IsARankOfItsOwn) {
  const std::string directory = environment("LOCKSTEP_TEST_DIRECTORY");
  ASSERT_FALSE(directory.empty()) << "started by the tests below only";
  const std::int64_t rank = std::stoll(environment("LOCKSTEP_TEST_RANK"));
  const auto communicator =
      join_world(rank, directory, environment("LOCKSTEP_TEST_TOKEN"), kForever);
  write_byte(kReportDescriptor);
  for (char order = 0; ::read(kOrderDescriptor, &order, 1) == 1;) {
    const at::Tensor tensor = order == kSmallOrder ? thirds(rank) : at::zeros({kLargeNumel});
    if (order == kBroadcastOrder) {
      communicator->broadcast(tensor, 2, {})->wait();
    } else {
      communicator->all_reduce(tensor, ReduceOp::kSum, {})->wait();
    }
    write_byte(kReportDescriptor);
  }
}

class GlooProcessTest : public ::testing::Test {
 protected:
  /// Connects rank 0 here with ranks 1 and 2 in processes.
  void start(milliseconds timeout = kForever) {
    communicator_.reset();
    directory_ = RendezvousDirectory::create();
    worker_1_.emplace(directory_, 1);
    worker_2_.emplace(directory_, 2);
    communicator_ = join_world(0, directory_.path(), directory_.token(), timeout);
    ASSERT_TRUE(worker_1_->await_report());
    ASSERT_TRUE(worker_2_->await_report());
  }

  /// Returns when all ranks are in a large collective and data moves; later for higher `delay`. On
  /// a busy machine it may return when all is over.
  std::unique_ptr<Work> start_transfer(char order, std::int64_t delay) {
    worker_1_->order(order);
    worker_2_->order(order);
    at::Tensor tensor = at::ones({kLargeNumel});
    auto work = order == kBroadcastOrder ? communicator_->broadcast(tensor, 2, {})
                                         : communicator_->all_reduce(tensor, ReduceOp::kSum, {});
    CommunicatorStatus status = communicator_->status();
    while (status.completed == 0 && (!status.running || !status.waiting_for.empty())) {
      std::this_thread::yield();
      status = communicator_->status();
    }
    at::zeros({delay * kLargeNumel / 16});
    return work;
  }

  RendezvousDirectory directory_ = RendezvousDirectory::create();
  std::optional<WorkerProcess> worker_1_, worker_2_;
  std::unique_ptr<GlooCommunicator> communicator_;
};

TEST_F(GlooProcessTest, LeavesTheBitsThatThreadsLeave) {
  start();
  worker_1_->order();
  worker_2_->order();
  at::Tensor over_processes = thirds(0);
  communicator_->all_reduce(over_processes, ReduceOp::kSum, {})->wait();
  GlooWorld world(kWorldSize);
  world.run([&](GlooCommunicator& communicator) {
    at::Tensor tensor = thirds(communicator.rank());
    communicator.all_reduce(tensor, ReduceOp::kSum, {})->wait();
    EXPECT_TRUE(tensor.equal(over_processes));
  });
}

// The time limit is ten minutes: only noticing the closed connection can end this test.
TEST_F(GlooProcessTest, AKilledPeerIsLostAtOnce) {
  start();
  const auto work = communicator_->all_reduce(thirds(0), ReduceOp::kSum, {CallSite::kBucket, 5, 2});
  worker_2_->signal(SIGKILL);
  EXPECT_THAT(message_of<PeerLost>([&] { work->wait(); }),
              AllOf(HasSubstr("rank 0: all_reduce bucket 2 at step 5"), HasSubstr("lost rank 2"),
                    HasSubstr("not entered by rank 1, 2")));
  EXPECT_TRUE(WIFSIGNALED(worker_2_->join()));
}

// Each time at another point of the transfer.
TEST_F(GlooProcessTest, APeerKilledAmidAnAllReduceIsLostAtOnce) {
  int num_amid = 0;
  for (std::int64_t attempt = 0; attempt < kNumKills; ++attempt) {
    start();
    const auto work = start_transfer(kLargeOrder, attempt);
    worker_2_->signal(SIGKILL);
    const std::string message = message_of<PeerLost>([&] { work->wait(); });
    EXPECT_THAT(message, AnyOf(HasSubstr("lost rank"), kNoError));
    num_amid += message != kNoError ? 1 : 0;
  }
  EXPECT_GE(num_amid, 1);
}

// One receive, half done: Gloo alone would sleep on.
TEST_F(GlooProcessTest, ARootKilledAmidABroadcastIsLostAtOnce) {
  int num_amid = 0;
  for (std::int64_t attempt = 0; attempt < kNumKills; ++attempt) {
    start();
    const auto work = start_transfer(kBroadcastOrder, attempt);
    worker_2_->signal(SIGKILL);
    const std::string message = message_of<PeerLost>([&] { work->wait(); });
    EXPECT_THAT(message, AnyOf(HasSubstr("lost rank"), kNoError));
    num_amid += message != kNoError ? 1 : 0;
  }
  EXPECT_GE(num_amid, 1);
}

TEST_F(GlooProcessTest, DestroyingItDoesNotWaitForAPeerThatStoppedAmidATransfer) {
  int num_amid = 0;
  for (std::int64_t attempt = 0; attempt < kNumKills; ++attempt) {
    start();
    const auto work = start_transfer(kBroadcastOrder, attempt);
    worker_2_->signal(SIGSTOP);
    communicator_.reset();
    const std::string message = message_of<CommError>([&] { work->wait(); });
    EXPECT_THAT(message, AnyOf(HasSubstr("is being destroyed"), kNoError));
    num_amid += message != kNoError ? 1 : 0;
  }
  EXPECT_GE(num_amid, 1);
}

// The first write to a peer that is gone raises SIGPIPE on the thread that writes.
TEST_F(GlooProcessTest, APeerKilledBeforeTheLaunchDoesNotKillThisProcess) {
  start();
  worker_1_->signal(SIGKILL);
  worker_1_->join();
  const auto work = communicator_->all_reduce(thirds(0), ReduceOp::kSum, {});
  EXPECT_THAT(message_of<PeerLost>([&] { work->wait(); }), HasSubstr("lost rank 1"));
  communicator_.reset();
}

TEST_F(GlooProcessTest, TheOtherSurvivorEndsToo) {
  start();
  worker_1_->order();
  const auto work = communicator_->all_reduce(thirds(0), ReduceOp::kSum, {});
  worker_2_->signal(SIGKILL);
  EXPECT_THAT(message_of<PeerLost>([&] { work->wait(); }), HasSubstr("lost rank"));
  EXPECT_FALSE(worker_1_->await_report());
  const int status = worker_1_->join();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
}

TEST_F(GlooProcessTest, AStoppedPeerTimesOutByName) {
  start(milliseconds(100));
  worker_2_->signal(SIGSTOP);
  worker_1_->order();
  worker_2_->order();
  const auto work = communicator_->all_reduce(thirds(0), ReduceOp::kSum, {});
  EXPECT_THAT(message_of<TimedOut>([&] { work->wait(); }),
              ContainsRegex("timed out after 100 ms: not entered by rank (1, )?2$"));
}

// The others give up while the worker is stopped; when it goes on, it must not get back in.
TEST_F(GlooProcessTest, AStoppedPeerThatGoesOnFindsThatItIsOut) {
  start(milliseconds(200));
  worker_2_->signal(SIGSTOP);
  const auto work = communicator_->all_reduce(thirds(0), ReduceOp::kSum, {});
  EXPECT_THAT(message_of<TimedOut>([&] { work->wait(); }), HasSubstr("timed out after 200 ms"));
  worker_2_->order();
  worker_2_->signal(SIGCONT);
  // Its own limit is ten minutes: only that rank 0 has gone can end it.
  EXPECT_FALSE(worker_2_->await_report());
  const int status = worker_2_->join();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
}

}  // namespace
}  // namespace lockstep::test
