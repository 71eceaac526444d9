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

#include <filesystem>
#include <fstream>
#include <functional>

#include "core/distributed_data_parallel.h"
#include "core/error.h"
#include "core/training_record.h"
#include "sim/world.h"
#include "tests/support/run_program.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;
using harness::Audit;
using harness::OutcomeKind;
using harness::RankRecord;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class AuditTest : public ::testing::Test {
 protected:
  std::string folder(const std::string& name) const {
    fs::create_directory(folder_.path(name));
    return folder_.path(name);
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

  TemporaryFolder folder_;
};

Audit audit_of(const std::string& folder) { return harness::audit(harness::read_records(folder)); }

ProgramResult audit_command(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {LOCKSTEP_BINARY, "audit"});
  return run_program(arguments);
}

MATCHER_P2(IsHeldBy, ranks, content, "") {
  return ::testing::ExplainMatchResult(ranks, arg.ranks, result_listener) &&
         ::testing::ExplainMatchResult(content, arg.content, result_listener);
}

/// A line of a state of tensors x and y; digests of one digit.
std::string state(const std::string& what, int step, const std::string& x, const std::string& y,
                  const std::string& more = "") {
  const auto tensor = [](const char* name, const std::string& bits) {
    return R"({"name":")" + std::string(name) + R"(","dtype":"Float","sizes":[2],"xxh3":)" +
           (bits.empty() ? "null" : '"' + std::string(15, '0') + bits + '"') + "}";
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
              ElementsAre(IsHeldBy(ElementsAre(0, 2), StartsWith("Float [1, 4], xxh3 ")),
                          IsHeldBy(ElementsAre(1), StartsWith("Float [1, 4], xxh3 "))));
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
  EXPECT_THAT(result.from_other_run->held, ElementsAre(IsHeldBy(ElementsAre(1), HasSubstr("d")),
                                                       IsHeldBy(ElementsAre(1), HasSubstr("e"))));
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

TEST_F(AuditTest, AbsentTensorsAreDifferencesWhateverTheOrder) {
  const auto first_of = [&](const std::string& one, const std::string& two) {
    const Audit result = audit_of(written({one, two}));
    return result.difference
               ? result.difference->tensor + ": " + result.difference->held[0].content + " | " +
                     result.difference->held[1].content
               : "";
  };
  EXPECT_EQ(first_of(state("gradients", 0, "a", "b"), state("gradients", 0, "a", "")),
            "y: Float [2], xxh3 000000000000000b | absent");
  EXPECT_EQ(first_of(R"({"state":"s","step":0,"tensors":[]})", state("s", 0, "a", "b")),
            "x: no such tensor | Float [2], xxh3 000000000000000a");
  const auto named = [](const char* first, const char* second) {
    return R"({"state":"s","step":0,"tensors":[{"name":")" + std::string(first) +
           R"(","xxh3":null},{"name":")" + second + R"(","xxh3":null}]})";
  };
  EXPECT_EQ(first_of(named("x", "y"), named("y", "x")), "");
  // What one rank calls its own and another does not is compared.
  EXPECT_EQ(first_of(state("s", 0, "a", "b"), state("s", 0, "a", "c", R"(,"own":true)")),
            "y: Float [2], xxh3 000000000000000b | Float [2], xxh3 000000000000000c");
}

// With join, or where only some ranks record.
TEST_F(AuditTest, StatesThatARankDidNotRecordAreSaidAndNoFailure) {
  const auto run = written({state("parameters", 0, "a", "b") + state("parameters", 1, "a", "c") +
                                state("parameters", 2, "a", "b") + kFinished,
                            state("parameters", 2, "a", "b") + kFinished});
  const Audit result = audit_of(run);
  EXPECT_TRUE(harness::is_in_lockstep(result, false));
  EXPECT_EQ(result.num_states, 1);
  EXPECT_THAT(result.notes,
              ElementsAre("rank 1 recorded no parameters of 2 of 3 steps, first of step 0"));
}

TEST_F(AuditTest, ARunOfWhichNothingWasComparedIsNotInLockstep) {
  for (const auto& run : {written({kFinished, kFinished}),
                          written({state("parameters", 0, "a", "b") + kFinished, kFinished})}) {
    const ProgramResult told = audit_command({run});
    EXPECT_EQ(told.exit_status, 1);
    EXPECT_THAT(told.out, HasSubstr("outcome: nothing was compared"));
  }
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
  EXPECT_THAT(
      told.out,
      AllOf(HasSubstr("outcome: deadlock"), HasSubstr("rank 0: waits in all_reduce (seq 1; bucket"),
            HasSubstr("for rank 1"), HasSubstr("rank 1: finished after 0 steps")));
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
  EXPECT_FALSE(result.outcome.wrong_pairing->is_mixed);  // nobody knows
}

TEST_F(AuditTest, RanksThatFinishedWithMoreCollectivesThanOthersAreAWrongPairing) {
  const Audit result =
      audit_of(written({kReduce + kFinished, kReduce + kReduce + kFinished, kReduce + kFinished}));
  EXPECT_EQ(result.outcome.kind, OutcomeKind::kDiverged);
  ASSERT_TRUE(result.outcome.wrong_pairing);
  EXPECT_EQ(result.outcome.wrong_pairing->seq, 1);
  EXPECT_THAT(result.outcome.wrong_pairing->nothing, ElementsAre(0, 2));
}

TEST_F(AuditTest, TheKindOfASumAndTheRootOfABroadcastBelongToTheCollective) {
  const auto all_reduce = [](const char* op) {
    return R"({"collective":"all_reduce","op":")" + std::string(op) + "\"}\n" + kFinished;
  };
  EXPECT_TRUE(audit_of(written({all_reduce("sum"), all_reduce("max")})).outcome.wrong_pairing);
  EXPECT_FALSE(audit_of(written({all_reduce("max"), all_reduce("max")})).outcome.wrong_pairing);
  const auto broadcast = [](int root) {
    return R"({"collective":"broadcast","root":)" + std::to_string(root) + "}\n";
  };
  EXPECT_TRUE(audit_of(written({broadcast(0) + kFinished, broadcast(1) + kFinished}))
                  .outcome.wrong_pairing);
  // Rank 1 waits for the root alone, which has sent.
  const Audit result =
      audit_of(written({broadcast(0) + kFinished, broadcast(0) + R"({"wait":0})", kFinished}));
  EXPECT_NE(result.outcome.kind, OutcomeKind::kDeadlock);
}

TEST_F(AuditTest, OfSeveralWaitsThatCountsInWhichSomebodyIsMissing) {
  const Audit result = audit_of(written(
      {kReduce + kBarrier + R"({"wait":0})" + "\n" + R"({"wait":1})", kReduce + kFinished}));
  EXPECT_EQ(result.outcome.kind, OutcomeKind::kDeadlock);
  EXPECT_EQ(result.outcome.ranks[0].waiting->seq, 1);
}

TEST_F(AuditTest, RanksInDifferentCollectivesOfOneSeqAreMissingFromBoth) {
  const std::string waits = R"({"wait":0})";
  const Audit result = audit_of(written({kReduce + waits, kBarrier + waits}));
  EXPECT_EQ(result.outcome.kind, OutcomeKind::kDeadlock);
  ASSERT_EQ(result.outcome.stuck.size(), 2U);
  for (const auto& stuck : result.outcome.stuck) EXPECT_EQ(stuck.waiting.size(), 1U);
}

TEST_F(AuditTest, AWaitThatFailedIsAnErrorThoughItsRankFinished) {
  const auto run =
      written({kReduce + R"({"wait":0})" + "\n" + R"({"waited":0,"error":""})" + "\n" + kFinished,
               kReduce + kFinished});
  EXPECT_EQ(audit_of(run).outcome.kind, OutcomeKind::kError);
  EXPECT_THAT(audit_of(run).notes, ElementsAre("on rank 0 the wait for seq 0 failed: "));
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
  const auto run = written({kBarrier + kFinished, kFinished, kBarrier + kFinished});
  fs::remove(run + "/rank-1.jsonl");
  const ProgramResult told = audit_command({run});
  EXPECT_EQ(told.exit_status, 1);
  EXPECT_THAT(told.out,
              AllOf(HasSubstr("outcome: unfinished"), HasSubstr("without a record: rank 1")));
}

TEST_F(AuditTest, WhatIsNoRecordIsRefusedWithFileAndLine) {
  // The second of two lines, by what the message says.
  const std::string deep(100'000, '[');
  const std::vector<std::pair<std::string, const char*>> lines = {
      {"{", "not JSON: parse error"},
      {"", "not JSON"},
      {"\xff", "not JSON"},
      {"[1]", "not an object of JSON"},
      {deep + std::string(deep.size(), ']'), "not an object of JSON"},
      {"{}", "none of the keys"},
      {R"({"wait":0})", "seq 0, but 0 collectives were issued"},
      {R"({"collective":7})", "'collective' is not a text"},
      {R"({"collective":"barrier","bukcet":1})", "did you mean 'bucket'"},
      {R"({"collective":"barrier","numel":-6})", "'numel' is not a whole number from 0"},
      {R"({"state":"s","tensors":[]})", "'step' is missing"},
      {R"({"state":"s","step":0.5,"tensors":[]})", "'step' is not a whole number"},
      {R"({"state":"s","step":18446744073709551615,"tensors":[]})", "'step' is not a whole number"},
      {R"({"state":"s","step":1e300,"tensors":[]})", "'step' is not a whole number"},
      {R"({"state":"s","step":-1,"tensors":[]})", "'step' is not a whole number"},
      {R"({"state":"s","step":0,"tensors":7})", "'tensors' is not a list"},
      {R"({"state":"s","step":0,"tensors":[7]})", "a tensor that is no object, but: number"},
      {R"({"state":"s","step":0,"tensors":[{"name":"x"}]})", "'xxh3' is missing"},
      {R"({"state":"s","step":0,"tensors":[{"name":"x","xxh3":"abc"}]})", "not 16 hexadecimal"},
      {R"({"end":"done"})", "neither finished nor failed"},
      {R"({"end":"finished","error":"x"})", "an error of a rank that finished"},
      {R"({"schema":1,"rank":0,"world_size":1})", "and no other"},
      {"{\"a\\u001b\":1,\"wait\":0}", "unknown key 'a\\x1b'"},
  };
  for (const auto& [line, says] : lines) {
    try {
      harness::read_records(written({line + "\n" + kFinished}));
      ADD_FAILURE() << says;
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("rank-0.jsonl:2: "), HasSubstr(says)));
    }
  }
  const std::string twice = state("s", 0, "a", "b"), waits = kBarrier + R"({"wait":0})" + "\n";
  const std::string over = R"({"waited":0})"
                           "\n";
  for (const std::string& text : {twice + twice, kFinished + kFinished, kBarrier + over,
                                  waits + over + over, waits + R"({"wait":0})"}) {
    EXPECT_THROW(harness::read_records(written({text})), UsageError) << text;
  }
  EXPECT_EQ(audit_command({written({"{}\n"})}).exit_status, 2);
}

// A name from a file can neither act on a terminal nor look like a line of the report.
TEST_F(AuditTest, WhatTheFilesSayIsPrintedOnOneLineWithoutControlCharacters) {
  const std::string line = R"({"collective":"\u001b[31m","site":"b\n  outcome: equal"})"
                           "\n";
  const ProgramResult told = audit_command({written({line + kFinished, kBarrier + kFinished})});
  EXPECT_EQ(told.exit_status, 1);
  EXPECT_THAT(told.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(told.out, Not(HasSubstr("\n  outcome: equal")));
}

TEST_F(AuditTest, FoldersThatAreNoRunAreRefused) {
  const auto refusal = [](const std::string& run) {
    try {
      harness::read_records(run);
      return std::string("nothing");
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  };
  const auto header = [](const std::string& file, const std::string& numbers) {
    std::ofstream(file) << R"({"schema":)" << numbers << "}\n";
  };
  EXPECT_THAT(refusal(folder_.path("none")), HasSubstr("No such file"));
  EXPECT_THAT(refusal(folder("empty")), HasSubstr("holds no record of a rank"));
  const auto run = written({kFinished, kFinished, kFinished});
  fs::copy(run + "/rank-0.jsonl", run + "/rank-00.jsonl");
  EXPECT_THAT(refusal(run), HasSubstr("are both of rank 0"));
  fs::remove(run + "/rank-00.jsonl");
  const std::string first = run + "/rank-0.jsonl", last = run + "/rank-2.jsonl";
  // Also where the record with another world size comes first.
  header(first, R"(1,"rank":0,"world_size":1)");
  EXPECT_THAT(refusal(run), HasSubstr("world sizes differ"));
  header(first, R"(1,"rank":1,"world_size":3)");
  EXPECT_THAT(refusal(run), HasSubstr("rank 1 in a file of another name"));
  header(first, R"(2,"rank":0,"world_size":3)");
  EXPECT_THAT(refusal(run), HasSubstr("schema 2 is not known"));
  header(first, R"(1,"rank":0,"world_size":1000000000000)");
  EXPECT_THAT(refusal(run), HasSubstr("is above"));
  header(last, R"(1,"rank":2,"world_size":2)");
  fs::remove(first);
  EXPECT_THAT(refusal(run), HasSubstr("rank 2 is outside of world size 2"));
}

// Their ranks have only begun, and other files are somebody else's.
TEST_F(AuditTest, FilesWithoutACompleteFirstLineAreLikeNone) {
  const auto run = written({kBarrier + kFinished, "", kBarrier + kFinished});
  std::ofstream(run + "/rank-1.jsonl") << R"({"schema")";
  std::ofstream(run + "/metrics.jsonl") << "{}\n";
  fs::create_directory(run + "/rank-7.jsonl");
  EXPECT_THAT(audit_of(run).without_record, ElementsAre(1));
  EXPECT_EQ(audit_command({run}).exit_status, 1);
  const ProgramResult told = audit_command({run, "--so-far"});
  EXPECT_EQ(told.exit_status, 0);
  EXPECT_THAT(told.out, HasSubstr("outcome: alike so far"));
}

}  // namespace
}  // namespace lockstep::test
