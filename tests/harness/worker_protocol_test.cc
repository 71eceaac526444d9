// SPDX-License-Identifier: Apache-2.0
// Messages between executor and worker arrive whole and in order, whatever the socket does to them.
#include "harness/execute/worker_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <utility>

#include "core/error.h"

namespace lockstep::harness {
namespace {

std::pair<std::unique_ptr<Channel>, std::unique_ptr<Channel>> connected_channels() {
  int fds[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  return {std::make_unique<Channel>(fds[0]), std::make_unique<Channel>(fds[1])};
}

TEST(WorkerProtocolTest, MessagesArriveWholeAndInOrder) {
  const auto [a, b] = connected_channels();
  EXPECT_TRUE(a->send(MessageKind::kStep, encode(StepNote{4})));
  EXPECT_TRUE(a->send(MessageKind::kBeat));
  EXPECT_TRUE(b->pump());
  const auto step = b->next();
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->kind, MessageKind::kStep);
  EXPECT_EQ(decode<StepNote>(step->payload).step, 4);
  const auto beat = b->next();
  ASSERT_TRUE(beat.has_value());
  EXPECT_EQ(beat->kind, MessageKind::kBeat);
  EXPECT_TRUE(beat->payload.empty());
  EXPECT_FALSE(b->next().has_value());
}

TEST(WorkerProtocolTest, AMessageLargerThanTheSocketArrivesInPieces) {
  const auto channels = connected_channels();
  Channel& receiver = *channels.second;
  RankEnded ended;
  ended.posted = 11;
  ended.record.resize(3'000'001);
  for (std::size_t i = 0; i < ended.record.size(); ++i) {
    ended.record[i] = static_cast<std::uint8_t>(i * 31);
  }
  std::thread sender([&] { channels.first->send(MessageKind::kEnded, encode(ended)); });
  std::optional<Message> message;
  while (!message) {
    ASSERT_TRUE(receiver.pump());
    message = receiver.next();
  }
  sender.join();
  const auto received = decode<RankEnded>(message->payload);
  EXPECT_EQ(received.posted, 11);
  EXPECT_EQ(received.record, ended.record);
}

TEST(WorkerProtocolTest, WhatWasSaidBeforeTheEndIsStillHeard) {
  auto [a, b] = connected_channels();
  EXPECT_TRUE(a->send(MessageKind::kClosed));
  a.reset();
  EXPECT_FALSE(b->pump());
  ASSERT_TRUE(b->next().has_value());
  EXPECT_FALSE(b->next().has_value());
  EXPECT_FALSE(b->send(MessageKind::kOver));
}

TEST(WorkerProtocolTest, AHalfMessageIsNoMessage) {
  auto [a, b] = connected_channels();
  EXPECT_TRUE(a->send(MessageKind::kStep, encode(StepNote{4})));
  std::uint8_t bytes[20];
  ASSERT_EQ(::read(b->fd(), bytes, sizeof(bytes)), 20);
  EXPECT_EQ(::write(b->fd(), bytes, 19), 19);
  EXPECT_TRUE(a->pump());
  EXPECT_FALSE(a->next().has_value());
}

TEST(WorkerProtocolTest, BytesThatAreNoMessageAreNoticed) {
  auto [a, b] = connected_channels();
  const std::vector<std::uint8_t> noise(64, 0xff);
  ASSERT_EQ(::write(a->fd(), noise.data(), noise.size()), 64);
  EXPECT_TRUE(b->pump());
  EXPECT_THROW(b->next(), InvariantError);
  EXPECT_THROW(decode<Whereabouts>(noise), UsageError);
  EXPECT_THROW(decode<StepNote>(std::vector<std::uint8_t>(9)), UsageError);
}

TEST(WorkerProtocolTest, WhereaboutsKeepEveryField) {
  Whereabouts where;
  where.round = 3;
  where.progress = 5;
  where.posted = 7;
  where.waiting.emplace();
  where.waiting->seq = 6;
  where.waiting->kind = CollectiveKind::kBroadcast;
  where.waiting->op = ReduceOp::kMax;
  where.waiting->tag = {CallSite::kBuffers, 2, 1};
  where.waiting->numel = 42;
  where.waiting->dtype = "Float";
  where.waiting->root = 1;
  where.position = {1, 2, 3};
  const auto read = decode<Whereabouts>(encode(where));
  EXPECT_EQ(read.round, 3);
  EXPECT_EQ(read.progress, 5);
  EXPECT_EQ(read.posted, 7);
  ASSERT_TRUE(read.waiting.has_value());
  EXPECT_EQ(sim::to_string(*read.waiting), sim::to_string(*where.waiting));
  EXPECT_EQ(read.waiting->seq, 6);
  EXPECT_EQ(read.waiting->op, ReduceOp::kMax);
  EXPECT_EQ(read.waiting->tag, where.waiting->tag);
  EXPECT_EQ(read.position, where.position);
}

TEST(WorkerProtocolTest, CaseOrdersKeepEveryField) {
  const CaseOrder order{1,       4,       "schema = 1\n", "/tmp/x", "token", 30'000,
                        600'000, "other", "eth0",         29'500,   true};
  const auto read = decode<CaseOrder>(encode(order));
  EXPECT_EQ(read.rank, 1);
  EXPECT_EQ(read.world_size, 4);
  EXPECT_EQ(read.case_toml, "schema = 1\n");
  EXPECT_EQ(read.directory, "/tmp/x");
  EXPECT_EQ(read.token, "token");
  EXPECT_EQ(read.connect_timeout_ms, 30'000);
  EXPECT_EQ(read.transfer_timeout_ms, 600'000);
  EXPECT_EQ(read.transport, "other");
}

}  // namespace
}  // namespace lockstep::harness
