// SPDX-License-Identifier: Apache-2.0
// Records survive the way through bytes; damaged bytes do not become records.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "harness/run.h"

namespace lockstep::harness {
namespace {

using ::testing::ElementsAre;

std::shared_ptr<const std::vector<TensorSlot>> two_slots() {
  std::vector<TensorSlot> slots(2);
  slots[0] = {"layer0.weight", "Float", {1, 2}, true, 0, 8, true};
  slots[1] = {"layer0.bias", "Double", {2}, false, 8, 0};
  return std::make_shared<const std::vector<TensorSlot>>(slots);
}

/// A record with no two fields alike.
RankRun full_record() {
  const auto slots = two_slots();
  const auto plan =
      std::make_shared<const ReductionPlan>(ReductionPlan{{{2, 1}, {0}}, Division::kAfter});
  RankRun run;
  run.rank = 3;
  run.initial_parameters = {slots, {1, 2, 3, 4, 5, 6, 7, 8}};
  run.initial_buffers = {nullptr, {}};
  for (const std::int64_t step : {5, 6}) {
    StepRecord record;
    record.step = step;
    record.losses = {-0.0, std::numeric_limits<double>::quiet_NaN(), 1.5};
    record.gradients = {slots, {9, 9, 9, 9, 8, 8, 8, 8}};
    record.parameters = {slots, {7, 7, 7, 7, 6, 6, 6, 6}};
    record.buffers = {slots, {5, 5, 5, 5, 4, 4, 4, 4}};
    record.optimizer = {slots, {3, 3, 3, 3, 2, 2, 2, 2}};
    record.plans = {nullptr, plan};
    record.inexact_in = "backward";
    run.steps.push_back(record);
  }
  run.ending = Ending::kWaiting;
  run.error_kind = "kind";
  run.error_message = std::string("zero \0 within", 13);
  run.signal = 11;
  run.at_step = 7;
  run.at_phase = "sync";
  run.waiting = WaitingIn{"all_reduce", "bucket", 17, 7, 1, 42, "Float", {0, 2}};
  run.never_ready = {{"layer1.weight", 4, 6, 1, "because"}};
  run.bucket_all_reduces = 19;
  run.rebuilds = 29;
  run.collectives = {{"all_reduce", "used_map", 2, 31, "Int", 3}};
  run.events_done = {1, 4};
  run.faults_done = {2};
  return run;
}

TEST(RunSerializeTest, KeepsEveryField) {
  const RankRun run = deserialize_rank_run(serialize(full_record()));
  EXPECT_EQ(run.rank, 3);
  EXPECT_THAT(run.initial_parameters.bytes, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  ASSERT_NE(run.initial_parameters.slots, nullptr);
  const std::vector<TensorSlot>& slots = *run.initial_parameters.slots;
  ASSERT_EQ(slots.size(), 2U);
  EXPECT_EQ(slots[0].name, "layer0.weight");
  EXPECT_EQ(slots[1].dtype, "Double");
  EXPECT_THAT(slots[0].sizes, ElementsAre(1, 2));
  EXPECT_TRUE(slots[0].defined);
  EXPECT_FALSE(slots[1].defined);
  EXPECT_EQ(slots[1].offset_bytes, 8);
  EXPECT_EQ(slots[0].num_bytes, 8);
  EXPECT_EQ(run.initial_buffers.slots, nullptr);
  EXPECT_EQ(run.ending, Ending::kWaiting);
  EXPECT_EQ(run.error_kind, "kind");
  EXPECT_EQ(run.error_message, std::string("zero \0 within", 13));
  EXPECT_EQ(run.signal, 11);
  EXPECT_EQ(run.at_step, 7);
  EXPECT_EQ(run.at_phase, "sync");
  ASSERT_EQ(run.never_ready.size(), 1U);
  EXPECT_EQ(run.never_ready[0].parameter, "layer1.weight");
  EXPECT_EQ(run.never_ready[0].bucket, 4);
  EXPECT_EQ(run.never_ready[0].step, 6);
  EXPECT_EQ(run.never_ready[0].micro_batch, 1);
  EXPECT_EQ(run.never_ready[0].why, "because");
  EXPECT_EQ(run.bucket_all_reduces, 19);
  EXPECT_EQ(run.rebuilds, 29);
  ASSERT_EQ(run.collectives.size(), 1U);
  EXPECT_EQ(run.collectives[0].collective, "all_reduce");
  EXPECT_EQ(run.collectives[0].site, "used_map");
  EXPECT_EQ(run.collectives[0].step, 2);
  EXPECT_EQ(run.collectives[0].numel, 31);
  EXPECT_EQ(run.collectives[0].dtype, "Int");
  EXPECT_EQ(run.collectives[0].bucket, 3);
  EXPECT_THAT(run.events_done, ElementsAre(1, 4));
  EXPECT_THAT(run.faults_done, ElementsAre(2));
}

TEST(RunSerializeTest, KeepsTheCollectiveARankWaitsIn) {
  const RankRun run = deserialize_rank_run(serialize(full_record()));
  ASSERT_TRUE(run.waiting.has_value());
  EXPECT_EQ(run.waiting->collective, "all_reduce");
  EXPECT_EQ(run.waiting->site, "bucket");
  EXPECT_EQ(run.waiting->seq, 17);
  EXPECT_EQ(run.waiting->step, 7);
  EXPECT_EQ(run.waiting->bucket, 1);
  EXPECT_EQ(run.waiting->numel, 42);
  EXPECT_EQ(run.waiting->dtype, "Float");
  EXPECT_THAT(run.waiting->waiting_for, ElementsAre(0, 2));
}

TEST(RunSerializeTest, KeepsStepsBitForBit) {
  const RankRun run = deserialize_rank_run(serialize(full_record()));
  ASSERT_EQ(run.steps.size(), 2U);
  const StepRecord& step = run.steps[1];
  EXPECT_EQ(step.step, 6);
  ASSERT_EQ(step.losses.size(), 3U);
  EXPECT_TRUE(std::signbit(step.losses[0]));
  EXPECT_TRUE(std::isnan(step.losses[1]));
  EXPECT_EQ(step.losses[2], 1.5);
  EXPECT_EQ(step.gradients.bytes[0], 9);
  EXPECT_EQ(step.parameters.bytes[0], 7);
  EXPECT_EQ(step.buffers.bytes[0], 5);
  EXPECT_EQ(step.optimizer.bytes[0], 3);
  EXPECT_EQ(step.inexact_in, "backward");
  ASSERT_EQ(step.plans.size(), 2U);
  EXPECT_EQ(step.plans[0], nullptr);
  ASSERT_NE(step.plans[1], nullptr);
  EXPECT_THAT(step.plans[1]->buckets, ElementsAre(ElementsAre(2, 1), ElementsAre(0)));
  EXPECT_EQ(step.plans[1]->division, Division::kAfter);
}

TEST(RunSerializeTest, WhatStepsShareIsWrittenOnceAndStaysShared) {
  const RankRun run = deserialize_rank_run(serialize(full_record()));
  EXPECT_EQ(run.steps[0].gradients.slots, run.initial_parameters.slots);
  EXPECT_EQ(run.steps[1].optimizer.slots, run.initial_parameters.slots);
  EXPECT_EQ(run.steps[0].plans[1], run.steps[1].plans[1]);
}

TEST(RunSerializeTest, EqualRecordsAreEqualBytes) {
  EXPECT_EQ(serialize(full_record()), serialize(full_record()));
  RankRun other = full_record();
  other.rebuilds += 1;
  EXPECT_NE(serialize(full_record()), serialize(other));
}

TEST(RunSerializeTest, AnEmptyRecordComesBackEmpty) {
  const RankRun run = deserialize_rank_run(serialize(RankRun{}));
  EXPECT_EQ(run.ending, Ending::kFinished);
  EXPECT_TRUE(run.steps.empty());
  EXPECT_FALSE(run.waiting.has_value());
}

TEST(RunSerializeTest, EveryDamagedBitIsNoticed) {
  std::vector<std::uint8_t> bytes = serialize(full_record());
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const auto mask = static_cast<std::uint8_t>(1U << (bit % 8));
    bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ mask);
    EXPECT_THROW(deserialize_rank_run(bytes), UsageError) << "bit " << bit;
    bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] ^ mask);
  }
}

TEST(RunSerializeTest, EveryShorterOrLongerPieceIsNoticed) {
  const std::vector<std::uint8_t> bytes = serialize(full_record());
  for (std::size_t count = 0; count < bytes.size(); ++count) {
    const std::vector<std::uint8_t> piece(bytes.begin(),
                                          bytes.begin() + static_cast<std::ptrdiff_t>(count));
    EXPECT_THROW(deserialize_rank_run(piece), UsageError) << count << " bytes";
  }
  std::vector<std::uint8_t> longer = bytes;
  longer.push_back(0);
  EXPECT_THROW(deserialize_rank_run(longer), UsageError);
}

TEST(RunSerializeTest, TensorsOutsideOfTheirSnapshotAreNotAccepted) {
  RankRun run = full_record();
  run.steps[1].optimizer.bytes.pop_back();
  EXPECT_THROW(deserialize_rank_run(serialize(run)), UsageError);
  run = full_record();
  run.initial_buffers.bytes = {1};
  EXPECT_THROW(deserialize_rank_run(serialize(run)), UsageError);
}

TEST(RunSerializeTest, UnknownNamesAreNotAccepted) {
  RankRun run = full_record();
  run.ending = static_cast<Ending>(17);
  EXPECT_THROW(deserialize_rank_run(serialize(run)), UsageError);
  EXPECT_THROW(to_string(run.ending), InvariantError);
}

TEST(RunSerializeTest, TheChecksumIsXxh3) {
  // The published value of XXH3_64bits for no input, with seed 0.
  EXPECT_EQ(checksum(Snapshot{}), 0x2d06800538d394c2U);
}

TEST(RunSerializeTest, TheChecksumSeesEveryBit) {
  Snapshot snapshot = full_record().initial_parameters;
  const std::uint64_t before = checksum(snapshot);
  for (std::uint8_t& byte : snapshot.bytes) {
    byte = static_cast<std::uint8_t>(byte ^ 1U);
    EXPECT_NE(checksum(snapshot), before);
    byte = static_cast<std::uint8_t>(byte ^ 1U);
  }
  EXPECT_EQ(checksum(snapshot), before);
}

TEST(RunSerializeTest, EndingsHaveNames) {
  EXPECT_STREQ(to_string(Ending::kFinished), "finished");
  EXPECT_STREQ(to_string(Ending::kLeft), "left");
  EXPECT_STREQ(to_string(Ending::kFailed), "failed");
  EXPECT_STREQ(to_string(Ending::kWaiting), "waiting");
  EXPECT_STREQ(to_string(Ending::kCrashed), "crashed");
}

}  // namespace
}  // namespace lockstep::harness
