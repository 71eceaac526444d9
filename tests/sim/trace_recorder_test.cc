// SPDX-License-Identifier: Apache-2.0
// What the trace hash sees: every field, in order.
#include "sim/trace_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "core/error.h"
#include "sim/virtual_clock.h"

namespace lockstep::test {
namespace {

using sim::CollectiveInfo;
using sim::TraceRecorder;
using sim::VirtualClock;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::uint64_t hash_of(const std::function<void(VirtualClock&, TraceRecorder&)>& write) {
  VirtualClock clock;
  TraceRecorder recorder(clock, /*keep_entries=*/false);
  write(clock, recorder);
  return recorder.take().hash;
}

TEST(TraceRecorderTest, HashesTimeRankKindAndIndexOfEveryEventInOrder) {
  using Write = std::function<void(VirtualClock&, TraceRecorder&)>;
  const Event step{EventKind::kStepBegin, 0};
  const Event end{EventKind::kStepEnd, 0};
  const std::vector<Write> writes = {
      [](auto&, auto&) {},
      [&](auto&, auto& recorder) { recorder.record(0, step); },
      [&](auto&, auto& recorder) { recorder.record(1, step); },
      [&](auto&, auto& recorder) { recorder.record(0, end); },
      [&](auto&, auto& recorder) {
        recorder.record(0, {EventKind::kStepBegin, 1});
      },
      [&](auto& clock, auto& recorder) {
        clock.advance_to(1);
        recorder.record(0, step);
      },
      [&](auto&, auto& recorder) {
        recorder.record(0, step);
        recorder.record(0, end);
      },
      [&](auto&, auto& recorder) {
        recorder.record(0, end);
        recorder.record(0, step);
      },
  };
  std::set<std::uint64_t> hashes;
  for (const Write& write : writes) {
    EXPECT_EQ(hash_of(write), hash_of(write));
    hashes.insert(hash_of(write));
  }
  EXPECT_THAT(hashes, SizeIs(writes.size()));
}

TEST(TraceRecorderTest, HashesEveryFieldOfACollectiveAndItsData) {
  const std::vector<std::function<void(CollectiveInfo&)>> changes = {
      [](CollectiveInfo&) {},
      [](CollectiveInfo& info) { info.seq = 1; },
      [](CollectiveInfo& info) { info.kind = CollectiveKind::kAllReduce; },
      [](CollectiveInfo& info) { info.op = ReduceOp::kMax; },
      [](CollectiveInfo& info) { info.tag.site = CallSite::kBucket; },
      [](CollectiveInfo& info) { info.tag.step = 1; },
      [](CollectiveInfo& info) { info.tag.bucket = 1; },
      [](CollectiveInfo& info) { info.numel = 1; },
      [](CollectiveInfo& info) { info.dtype = "Long"; },
      [](CollectiveInfo& info) { info.root = 1; },
  };
  std::set<std::uint64_t> hashes;
  for (const std::uint64_t data_hash : {0U, 1U}) {
    for (const auto& change : changes) {
      CollectiveInfo info;
      change(info);
      hashes.insert(hash_of([&](auto&, auto& recorder) {
        recorder.record(0, EventKind::kCompleted, info, data_hash);
      }));
    }
  }
  EXPECT_THAT(hashes, SizeIs(2 * changes.size()));
}

TEST(TraceRecorderTest, KeepsEntriesWithTheirTimesIfAsked) {
  VirtualClock clock;
  TraceRecorder recorder(clock, /*keep_entries=*/true);
  clock.advance_to(5);
  recorder.record(2, {EventKind::kFinalized, -1});
  recorder.record(1, EventKind::kPosted, CollectiveInfo{});
  const sim::Trace trace = recorder.take();
  ASSERT_THAT(trace.entries, SizeIs(2));
  EXPECT_EQ(trace.entries[0].time_ns, 5);
  EXPECT_EQ(trace.entries[0].rank, 2);
  EXPECT_EQ(trace.entries[0].event.kind, EventKind::kFinalized);
  EXPECT_THAT(trace.entries[0].detail, IsEmpty());
  EXPECT_EQ(trace.entries[1].event.index, 0);
  EXPECT_EQ(trace.entries[1].detail, "barrier (script)");
}

TEST(VirtualClockTest, NeverGoesBack) {
  VirtualClock clock;
  clock.advance_to(5);
  clock.advance_to(5);
  EXPECT_THROW(clock.advance_to(4), InvariantError);
  EXPECT_EQ(clock.now_ns(), 5);
}

}  // namespace
}  // namespace lockstep::test
