// SPDX-License-Identifier: Apache-2.0
// What `lockstep audit` finds in the records of real ranks.
#include "harness/audit/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "core/distributed_data_parallel.h"
#include "core/error.h"
#include "core/training_record.h"
#include "sim/world.h"
#include "tests/support/run_program.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;
using harness::Audit;
using harness::OutcomeKind;
using harness::RankRecord;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;

class AuditTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string made = fs::temp_directory_path() / "lockstep.audit.XXXXXX";
    ASSERT_NE(::mkdtemp(made.data()), nullptr);
    folder_ = made;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string folder(const std::string& name) const {
    fs::create_directory(folder_ + "/" + name);
    return folder_ + "/" + name;
  }

  /// By rank: the lines after the first.
  std::string written(const std::vector<std::string>& ranks,
                      const std::string& name = "run") const {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      std::ofstream(folder(name) + "/rank-" + std::to_string(rank) + ".jsonl")
          << R"({"schema":1,"rank":)" << rank << R"(,"world_size":)" << ranks.size() << "}\n"
          << ranks[rank];
    }
    return folder(name);
  }

  std::string folder_;
};

Audit audit_of(const std::string& folder) { return harness::audit(harness::read_records(folder)); }

ProgramResult audit_command(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {LOCKSTEP_BINARY, "audit"});
  return run_program(arguments);
}

/// A line of a state of tensors x and y.
std::string state(const std::string& what, int step, const std::string& x, const std::string& y,
                  const std::string& more = "") {
  const auto tensor = [](const char* name, const std::string& bits) {
    return R"({"name":")" + std::string(name) + R"(","dtype":"Float","sizes":[2],"xxh3":)" +
           (bits.empty() ? "null" : "\"" + bits + "\"") + "}";
  };
  return R"({"state":")" + what + R"(","step":)" + std::to_string(step) + R"(,"tensors":[)" +
         tensor("x", x) + "," + tensor("y", y) + "]" + more + "}\n";
}

const std::string kReduce = R"({"collective":"all_reduce","site":"bucket","step":0,"numel":4})"
                            "\n";
const std::string kBarrier = R"({"collective":"barrier"})"
                             "\n";
const std::string kFinished = R"({"end":"finished"})"
                              "\n";

// Three simulated ranks with a BatchNorm, whose statistics are each rank's own.
void train(const std::string& folder, int steps,
           const std::function<void(std::int64_t rank, int step, at::Tensor& weight)>& spoil) {
  sim::WorldOptions options;
  options.world_size = 3;
  const auto result = sim::run_world(options, [&](sim::RankContext& rank) {
    TrainingRecord record(folder, rank.communicator());
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4),
                              torch::nn::Linear(4, 1));
    DdpOptions ddp_options;
    ddp_options.broadcast_buffers = false;
    DistributedDataParallel<torch::nn::SequentialImpl> ddp(net.ptr(), record.communicator(),
                                                           ddp_options);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      torch::mse_loss(ddp.forward(torch::randn({5, 4})), torch::ones({5, 1})).backward();
      optimizer.step();
      at::Tensor weight = net->parameters()[4];
      spoil(rank.rank(), step, weight);
      record.step(step, *net);
    }
    record.finish();
  });
  for (const auto& rank : result.ranks) ASSERT_EQ(rank.error, nullptr);
}

TEST_F(AuditTest, ATrainingWithDdpIsInLockstep) {
  train(folder("run"), 4, [](auto, auto, auto&) {});
  const Audit result = audit_of(folder("run"));
  EXPECT_EQ(result.outcome.kind, OutcomeKind::kEqual);
  EXPECT_TRUE(harness::is_in_lockstep(result, false));
  EXPECT_THAT(result.steps, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(result.num_states, 8);  // gradients and parameters
  EXPECT_GE(result.num_collectives, 4);
  const ProgramResult told = audit_command({folder("run")});
  EXPECT_EQ(told.exit_status, 0) << told.out << told.err;
  EXPECT_THAT(told.out, AllOf(HasSubstr("3 ranks, 4 steps (0-3), 8 states compared"),
                              HasSubstr("outcome: equal")));
}

TEST_F(AuditTest, DriftIsFoundInTheStepAndTensorInWhichItBegins) {
  train(folder("run"), 5, [](auto rank, int step, at::Tensor& weight) {
    const torch::NoGradGuard no_grad;
    if (rank == 1 && step == 2) weight[0][3] += 1e-6;
  });
  const Audit result = audit_of(folder("run"));
  EXPECT_EQ(result.outcome.kind, OutcomeKind::kDiverged);
  ASSERT_TRUE(result.difference);
  EXPECT_EQ(result.difference->what, "parameters");
  EXPECT_EQ(result.difference->step, 2);
  EXPECT_EQ(result.difference->tensor, "2.weight");
  EXPECT_EQ(result.difference->num_differ, 1);
  EXPECT_EQ(result.difference->num_tensors, 6);
  EXPECT_EQ(result.difference->alike_before, "gradients of step 2");
  EXPECT_THAT(result.difference->held,
              ElementsAre(Pair(ElementsAre(0, 2), StartsWith("Float [1, 4], xxh3 ")),
                          Pair(ElementsAre(1), StartsWith("Float [1, 4], xxh3 "))));
  const ProgramResult told = audit_command({folder("run")});
  EXPECT_EQ(told.exit_status, 1) << told.err;
  EXPECT_THAT(told.out, AllOf(HasSubstr("outcome: diverged"),
                              HasSubstr("parameters of step 2, first in 2.weight (1 of 6 tensors)"),
                              HasSubstr("alike until then: gradients of step 2")));
}

TEST_F(AuditTest, AnotherRunIsHeldAgainstItBitByBit) {
  const auto nothing = [](auto, auto, auto&) {};
  train(folder("one"), 3, nothing);
  train(folder("same"), 4, nothing);
  // All ranks alike: only the other run tells.
  train(folder("other"), 3, [](auto, int step, at::Tensor& weight) {
    const torch::NoGradGuard no_grad;
    if (step == 1) weight[0][0] += 1e-6;
  });
  EXPECT_EQ(audit_command({folder("one"), "--against", folder("same")}).exit_status, 0);
  EXPECT_EQ(audit_command({folder("other")}).exit_status, 0);
  const ProgramResult told = audit_command({folder("other"), "--against", folder("one")});
  EXPECT_EQ(told.exit_status, 1) << told.err;
  EXPECT_THAT(told.out, AllOf(HasSubstr("not as in the other run: parameters of step 1, first in "
                                        "2.weight (1 of 6 tensors)"),
                              HasSubstr("here, rank 0: "), HasSubstr("there, rank 0: ")));
}

TEST_F(AuditTest, OwnStateIsComparedWithTheSameRankOfAnotherRunOnly) {
  const std::string own = R"(,"own":true)";
  const auto one =
      written({state("buffers", 0, "a", "b", own), state("buffers", 0, "c", "d", own)});
  const auto two =
      written({state("buffers", 0, "a", "b", own), state("buffers", 0, "c", "e", own)}, "two");
  EXPECT_FALSE(audit_of(one).difference);
  const auto records = harness::read_records(one), others = harness::read_records(two);
  const Audit result = harness::audit(records, &others);
  ASSERT_TRUE(result.from_other_run);
  EXPECT_EQ(result.from_other_run->tensor, "y");
  EXPECT_THAT(result.from_other_run->held, ElementsAre(Pair(ElementsAre(1), HasSubstr("d")),
                                                       Pair(ElementsAre(1), HasSubstr("e"))));
}

TEST_F(AuditTest, RunsOfOtherWorldSizesAreComparedWithRank0) {
  const std::string alike = state("parameters", 0, "a", "b") + kFinished;
  const auto two = written({alike, alike}), one = written({alike}, "one");
  EXPECT_EQ(audit_command({two, "--against", one}).exit_status, 0);
  const auto other = written({state("parameters", 0, "a", "c") + kFinished}, "other");
  EXPECT_EQ(audit_command({two, "--against", other}).exit_status, 1);
  const auto unrelated = written({state("parameters", 7, "a", "c") + kFinished}, "unrelated");
  EXPECT_EQ(audit_command({two, "--against", unrelated}).exit_status, 2);
}

TEST_F(AuditTest, AbsentTensorsAndGapsAreDifferences) {
  const auto first_of = [&](const std::string& one, const std::string& two) {
    const Audit result = audit_of(written({one, two}));
    return result.difference
               ? result.difference->tensor + ": " + result.difference->held[0].second + " | " +
                     result.difference->held[1].second
               : "";
  };
  EXPECT_EQ(first_of(state("gradients", 0, "a", "b"), state("gradients", 0, "a", "")),
            "y: Float [2], xxh3 b | absent");
  EXPECT_EQ(first_of(state("parameters", 0, "a", "b") + state("parameters", 1, "a", "b"),
                     state("parameters", 1, "a", "b")),
            "x: Float [2], xxh3 a | not recorded");
  // One that stopped earlier has no gap.
  EXPECT_EQ(first_of(state("parameters", 0, "a", "b") + state("parameters", 1, "a", "b"),
                     state("parameters", 0, "a", "b")),
            "");
  EXPECT_EQ(first_of(R"({"state":"s","step":0,"tensors":[]})", state("s", 0, "a", "b")),
            "x: no such tensor | Float [2], xxh3 a");
}

// Rank 1 left a block out and finished; rank 0 waits for its bucket.
TEST_F(AuditTest, ARankThatWaitsForOneThatHasFinishedWaitsForEver) {
  const auto run = written({kBarrier + kReduce + R"({"wait":1})" + "\n", kBarrier + kFinished});
  const Audit result = audit_of(run);
  EXPECT_EQ(result.outcome.kind, OutcomeKind::kDeadlock);
  ASSERT_EQ(result.outcome.stuck.size(), 1U);
  EXPECT_EQ(result.outcome.stuck[0].collective.seq, 1);
  EXPECT_THAT(result.outcome.stuck[0].waiting, ElementsAre(0));
  EXPECT_EQ(result.outcome.stuck[0].absent[0].rank, 1);
  EXPECT_FALSE(harness::is_in_lockstep(result, true));
  const ProgramResult told = audit_command({run, "--so-far"});
  EXPECT_EQ(told.exit_status, 1);
  EXPECT_THAT(told.out, AllOf(HasSubstr("outcome: deadlock"),
                              HasSubstr("rank 0: waits in all_reduce (seq 1; bucket"),
                              HasSubstr("for rank 1"), HasSubstr("finished after 0 steps")));
}

TEST_F(AuditTest, RanksThatWaitForEachOtherWaitForEver) {
  const std::string waits = R"({"wait":0})"
                            "\n";
  const Audit result = audit_of(written({kReduce + waits, kBarrier + kReduce + R"({"wait":1})",
                                         kBarrier + kReduce + R"({"wait":1})"}));
  EXPECT_EQ(result.outcome.kind, OutcomeKind::kDeadlock);
  EXPECT_THAT(result.outcome.ranks[0].waiting->waiting_for, ElementsAre(1, 2));
  ASSERT_TRUE(result.outcome.wrong_pairing);
  EXPECT_EQ(result.outcome.wrong_pairing->seq, 0);
}

TEST_F(AuditTest, ARankThatWaitsForOneThatMayGoOnMayGoOnToo) {
  const auto run = written({kReduce + R"({"wait":0})", R"({"wait":0)", kReduce + R"({"wait":0})"});
  const Audit result = audit_of(run);
  EXPECT_EQ(result.outcome.kind, OutcomeKind::kEqual);
  EXPECT_THAT(result.without_end, ElementsAre(0, 1, 2));
  EXPECT_FALSE(harness::is_in_lockstep(result, false));
  EXPECT_TRUE(harness::is_in_lockstep(result, true));
  const ProgramResult told = audit_command({run});
  EXPECT_EQ(told.exit_status, 1);
  EXPECT_THAT(told.out,
              AllOf(HasSubstr("outcome: unfinished"), HasSubstr("its record breaks off"),
                    HasSubstr("without an end: ranks 0-2; if the run goes on: --so-far")));
  EXPECT_EQ(audit_command({run, "--so-far"}).exit_status, 0);
}

TEST_F(AuditTest, OtherCollectivesAreAWrongPairingThoughAllFinished) {
  const Audit result = audit_of(written({kReduce + kFinished, kBarrier + kFinished}));
  EXPECT_EQ(result.outcome.kind, OutcomeKind::kDiverged);
  ASSERT_TRUE(result.outcome.wrong_pairing);
  EXPECT_TRUE(result.outcome.wrong_pairing->is_mixed);
}

TEST_F(AuditTest, AFailedRankIsAnErrorWithWhatItSaid) {
  const std::string failed = R"({"wait":0})"
                             "\n"
                             R"({"waited":0,"error":"rank 1 is silent"})"
                             "\n";
  for (const std::string& end :
       {std::string(), std::string(R"({"end":"failed","error":"gone"})")}) {
    const auto run = written({kReduce + failed + end, kReduce + kFinished});
    EXPECT_EQ(audit_of(run).outcome.kind, OutcomeKind::kError);
    EXPECT_THAT(
        audit_command({run}).out,
        AllOf(HasSubstr("outcome: error"), HasSubstr("rank 0: failed"),
              HasSubstr(end.empty() ? "with error: rank 1 is silent" : "with error: gone")));
  }
}

TEST_F(AuditTest, ARankWithoutARecordIsNamed) {
  const auto run = written({state("parameters", 0, "a", "b") + kFinished, kFinished, kFinished});
  fs::remove(run + "/rank-1.jsonl");
  const ProgramResult told = audit_command({run});
  EXPECT_EQ(told.exit_status, 1);
  EXPECT_THAT(told.out,
              AllOf(HasSubstr("outcome: unfinished"), HasSubstr("without a record: rank 1")));
}

TEST_F(AuditTest, WhatIsNoRecordIsRefusedWithFileAndLine) {
  const auto refusal = [&](const std::string& text) {
    const ProgramResult told = audit_command({written({text + "\n" + kFinished})});
    EXPECT_EQ(told.exit_status, 2) << told.out;
    EXPECT_THAT(told.err, HasSubstr("rank-0.jsonl:2: "));
    return told.err;
  };
  EXPECT_THAT(refusal("{"), HasSubstr("not an object of JSON"));
  EXPECT_THAT(refusal("[1]"), HasSubstr("not an object of JSON"));
  EXPECT_THAT(refusal("{}"), HasSubstr("none of the keys"));
  EXPECT_THAT(refusal(R"({"wait":0})"), HasSubstr("seq 0, but 0 collectives were issued"));
  EXPECT_THAT(refusal(R"({"collective":7})"), HasSubstr("'collective' is of another type: 7"));
  EXPECT_THAT(refusal(R"({"collective":"barrier","bukcet":1})"),
              HasSubstr("did you mean 'bucket'"));
  EXPECT_THAT(refusal(R"({"state":"s","tensors":[]})"), HasSubstr("'step' is missing"));
  EXPECT_THAT(refusal(R"({"state":"s","step":0,"tensors":[{"name":"x"}]})"), HasSubstr("no xxh3"));
  EXPECT_THAT(refusal(R"({"state":"s","step":0,"tensors":[7]})"), HasSubstr("no object: 7"));
  EXPECT_THAT(refusal(R"({"end":"done"})"), HasSubstr("neither finished nor failed"));
  EXPECT_THAT(refusal(R"({"schema":1,"rank":0,"world_size":1})"), HasSubstr("and no other"));
  const std::string twice = state("s", 0, "a", "b");
  EXPECT_EQ(audit_command({written({twice + twice})}).exit_status, 2);
  EXPECT_EQ(audit_command({written({kFinished + kFinished})}).exit_status, 2);
}

TEST_F(AuditTest, FoldersThatAreNoRunAreRefused) {
  EXPECT_THAT(audit_command({folder_ + "/none"}).err, HasSubstr("No such file"));
  EXPECT_THAT(audit_command({folder("empty")}).err, HasSubstr("holds no record of a rank"));
  const auto run = written({kFinished, kFinished});
  fs::copy(run + "/rank-0.jsonl", run + "/copy.jsonl");
  EXPECT_THAT(audit_command({run}).err, HasSubstr("are both of rank 0"));
  fs::remove(run + "/rank-0.jsonl");
  std::ofstream(run + "/copy.jsonl") << R"({"schema":1,"rank":0,"world_size":3})"
                                     << "\n";
  EXPECT_THAT(audit_command({run}).err, HasSubstr("world sizes differ"));
  std::ofstream(run + "/copy.jsonl") << R"({"schema":2,"rank":0,"world_size":2})"
                                     << "\n";
  EXPECT_THAT(audit_command({run}).err, HasSubstr("schema 2 is not known"));
  std::ofstream(run + "/copy.jsonl").close();
  EXPECT_THAT(audit_command({run}).err, HasSubstr("no line with schema"));
}

}  // namespace
}  // namespace lockstep::test
