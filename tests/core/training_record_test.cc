// SPDX-License-Identifier: Apache-2.0
// What a rank writes down while it trains.
#include "core/training_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "core/error.h"
#include "tests/core/parameter_bank.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

class TrainingRecordTest : public ::testing::Test {
 protected:
  std::vector<std::string> lines(std::int64_t rank) const {
    std::ifstream in(folder_.path() + "/rank-" + std::to_string(rank) + ".jsonl");
    std::vector<std::string> result;
    for (std::string line; std::getline(in, line);) result.push_back(line);
    return result;
  }

  TemporaryFolder folder_;
};

// All of it for one rank, whose order of events is known.
TEST_F(TrainingRecordTest, HoldsWhatWasIssuedWaitedForAndHeldInTheOrderInWhichItWas) {
  run_ranks(1, [&](LocalCommunicator& communicator) {
    TrainingRecord record(folder_.path(), communicator);
    auto work =
        record.communicator().all_reduce(at::ones({6}), ReduceOp::kSum, {CallSite::kBucket, 3, 1});
    record.communicator().barrier({CallSite::kBarrier, -1, -1})->wait();
    work->wait();
    work->wait();  // again: nothing new
    record.state(3, "optimizer", {{"a \"b\"\n", at::zeros({0})}, {"c", {}}});
    record.finish();
  });
  EXPECT_THAT(
      lines(0),
      ElementsAre(
          R"({"schema":1,"rank":0,"world_size":1})",
          R"({"collective":"all_reduce","op":"sum","site":"bucket","step":3,"bucket":1,"numel":6,"dtype":"Float"})",
          R"({"collective":"barrier","site":"barrier"})", R"({"wait":1})", R"({"waited":1})",
          R"({"wait":0})", R"({"waited":0})",
          // XXH3 of nothing, from its specification.
          R"({"state":"optimizer","step":3,"tensors":[{"name":"a \"b\"\n","dtype":"Float","sizes":[0],"xxh3":"2d06800538d394c2"},{"name":"c","xxh3":null}]})",
          R"({"end":"finished"})"));
}

TEST_F(TrainingRecordTest, RanksOfADdpHoldTheSameAndTheirOwnBuffersAreMarked) {
  run_ranks(2, [&](LocalCommunicator& communicator) {
    TrainingRecord record(folder_.path(), communicator);
    ParameterBank bank = scalar_bank(2);
    bank->register_buffer("seen", at::full({2}, communicator.rank()));
    DdpOptions options;
    options.find_unused_parameters = true;
    options.broadcast_buffers = options.init_sync = false;
    BankDdp ddp(bank.ptr(), record.communicator(), options);
    train_once(ddp, {{0, 1.0 + static_cast<double>(communicator.rank())}});
    record.step(0, *bank);
    record.fail("so far");
  });
  const std::vector<std::string> first = lines(0), second = lines(1);
  ASSERT_EQ(first.size(), second.size());
  const auto tail = [](const std::vector<std::string>& all, std::size_t from_end) {
    return all[all.size() - from_end];
  };
  EXPECT_THAT(tail(first, 1), R"({"end":"failed","error":"so far"})");
  EXPECT_THAT(tail(first, 2),
              AllOf(StartsWith(R"({"state":"buffers")"), HasSubstr(R"("own":true)")));
  EXPECT_NE(tail(first, 2), tail(second, 2));
  EXPECT_THAT(tail(first, 4), AllOf(StartsWith(R"({"state":"gradients")"),
                                    HasSubstr(R"({"name":"p1","xxh3":null})")));
  EXPECT_EQ(tail(first, 3), tail(second, 3));
  EXPECT_EQ(tail(first, 4), tail(second, 4));
  EXPECT_THAT(first, ::testing::Contains(HasSubstr(R"("site":"used_map")")));
}

TEST_F(TrainingRecordTest, TheBitsAreTakenInRowMajorOrderWhateverTheLayout) {
  const at::Tensor dense = torch::arange(6, at::kDouble).view({2, 3});
  const at::Tensor transposed = dense.t().contiguous().t();
  run_ranks(1, [&](LocalCommunicator& communicator) {
    TrainingRecord record(folder_.path(), communicator);
    record.state(0, "a", {{"x", dense}});
    record.state(0, "b", {{"x", transposed}});
    record.state(0, "c", {{"x", dense.to_sparse()}});
    record.state(0, "d", {{"x", dense.clone().fill_(1)}});
  });
  std::vector<std::string> tensors = lines(0);
  ASSERT_THAT(tensors, SizeIs(5));
  for (std::string& line : tensors) line.erase(0, line.find("tensors"));
  EXPECT_EQ(tensors[1], tensors[2]);
  EXPECT_EQ(tensors[1], tensors[3]);
  EXPECT_NE(tensors[1], tensors[4]);
}

// A view that is conjugate, or negative, in name only has other elements than what lies in memory.
TEST_F(TrainingRecordTest, TheBitsAreThoseOfTheElementsAndNotOfTheMemory) {
  const at::Tensor values = torch::randn({3}, at::kComplexDouble);
  run_ranks(1, [&](LocalCommunicator& communicator) {
    TrainingRecord record(folder_.path(), communicator);
    record.state(0, "a", {{"x", values.conj()}});
    record.state(0, "b", {{"x", values.conj().resolve_conj()}});
    record.state(0, "c", {{"x", at::imag(values.conj())}});
    record.state(0, "d", {{"x", at::imag(values.conj()).clone()}});
  });
  std::vector<std::string> tensors = lines(0);
  ASSERT_THAT(tensors, SizeIs(5));
  for (std::string& line : tensors) line.erase(0, line.find("tensors"));
  EXPECT_EQ(tensors[1], tensors[2]);
  EXPECT_EQ(tensors[3], tensors[4]);
}

TEST_F(TrainingRecordTest, WhatCouldNotBeReadBackIsRefused) {
  run_ranks(1, [&](LocalCommunicator& communicator) {
    TrainingRecord record(folder_.path(), communicator);
    record.state(2, "a", {});
    EXPECT_THROW(record.state(2, "a", {}), UsageError);
    EXPECT_THROW(record.state(1, "a", {}), UsageError);
    EXPECT_THROW(record.state(-1, "b", {}), UsageError);
    EXPECT_THROW(record.state(3, "a", {{"x", {}}, {"x", {}}}), UsageError);
    auto work = record.communicator().barrier({CallSite::kBarrier, -1, -1});
    record.finish();
    EXPECT_THROW(record.state(3, "a", {}), UsageError);
    EXPECT_THROW(record.finish(), UsageError);
    EXPECT_THROW(record.fail("late"), UsageError);
    work->wait();  // goes on, but is not noted
    record.communicator().barrier({CallSite::kBarrier, -1, -1})->wait();
  });
  const std::vector<std::string> all = lines(0);
  EXPECT_THAT(all, SizeIs(4));
  EXPECT_EQ(all.back(), R"({"end":"finished"})");
}

TEST_F(TrainingRecordTest, AWaitThatFailsSaysWhyAndTheErrorGoesOn) {
  const auto outcomes = try_run_ranks(2, [&](LocalCommunicator& communicator) {
    if (communicator.rank() == 1) return;
    TrainingRecord record(folder_.path(), communicator);
    record.communicator().barrier({CallSite::kBarrier, -1, -1})->wait();
  });
  EXPECT_TRUE(outcomes[0].error_as<PeerLost>());
  EXPECT_THAT(lines(0), SizeIs(4));
  EXPECT_THAT(lines(0).back(), StartsWith(R"({"waited":0,"error":")"));
}

TEST_F(TrainingRecordTest, AnEarlierRunsRecordAndAFolderThatCannotBeAreRefused) {
  run_ranks(1, [&](LocalCommunicator& communicator) {
    { const TrainingRecord record(folder_.path("new"), communicator); }
    for (const char* folder : {"new", "missing/new"}) {
      try {
        const TrainingRecord record(folder_.path(folder), communicator);
        ADD_FAILURE() << folder;
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), HasSubstr(folder_.path(folder)));
      }
    }
  });
}

// The training goes on with its collectives; the next line of its own is an error.
TEST_F(TrainingRecordTest, AFullDiskIsAnErrorOfTheRecordsOwnLinesOnly) {
  const pid_t child = ::fork();
  if (child == 0) {
    LocalCommunicator communicator(std::make_shared<LocalGroup>(1), 0);
    TrainingRecord record(folder_.path(), communicator);
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{64, 64};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    record.communicator().barrier({CallSite::kBarrier, -1, -1})->wait();
    record.communicator().barrier({CallSite::kBarrier, -1, -1})->wait();
    try {
      record.finish();
    } catch (const Error& error) {
      ::_exit(std::string(error.what()).find("File too large") != std::string::npos ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep::test
