// SPDX-License-Identifier: Apache-2.0
// Framing of messages over a stream socket, and the bytes of their payloads.
#include "harness/execute/worker_protocol.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/check.h"
#include "harness/archive.h"

namespace lockstep {

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const CollectiveTag* /*record*/) {
  auto& [site, step, bucket] = self;
  archive(site, step, bucket);
}

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const CollectiveDescription* /*record*/) {
  auto& [seq, kind, op, tag, numel, dtype, root] = self;
  archive(seq, kind, op, tag, numel, dtype, root);
}

}  // namespace lockstep

namespace lockstep::harness {

// See Note [One list of fields].

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const CaseOrder* /*record*/) {
  auto& [rank, world_size, case_toml, directory, token, connect_timeout_ms, transfer_timeout_ms,
         transport, interface, port, store_removed] = self;
  archive(rank, world_size, case_toml, directory, token, connect_timeout_ms, transfer_timeout_ms,
          transport, interface, port, store_removed);
}

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const WhereQuery* /*record*/) {
  archive(self.round);
}

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const StepNote* /*record*/) {
  archive(self.step);
}

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const Whereabouts* /*record*/) {
  auto& [round, progress, posted, waiting, position] = self;
  archive(round, progress, posted, waiting, position);
}

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const RankEnded* /*record*/) {
  auto& [posted, failed_in, record] = self;
  archive(posted, failed_in, record);
}

template <class Archive, class Self>
void archive_fields(Archive& archive, Self& self, const BrokenNote* /*record*/) {
  archive(self.text);
}

template <class Payload>
std::vector<std::uint8_t> encode(const Payload& payload) {
  return archive_bytes(payload);
}

template <class Payload>
Payload decode(const std::vector<std::uint8_t>& bytes) {
  return from_archive<Payload>(bytes);
}

template std::vector<std::uint8_t> encode(const CaseOrder&);
template std::vector<std::uint8_t> encode(const WhereQuery&);
template std::vector<std::uint8_t> encode(const StepNote&);
template std::vector<std::uint8_t> encode(const Whereabouts&);
template std::vector<std::uint8_t> encode(const RankEnded&);
template std::vector<std::uint8_t> encode(const BrokenNote&);
template CaseOrder decode(const std::vector<std::uint8_t>&);
template WhereQuery decode(const std::vector<std::uint8_t>&);
template StepNote decode(const std::vector<std::uint8_t>&);
template Whereabouts decode(const std::vector<std::uint8_t>&);
template RankEnded decode(const std::vector<std::uint8_t>&);
template BrokenNote decode(const std::vector<std::uint8_t>&);

namespace {

/// What every message begins with.
struct Frame {
  std::uint32_t kind = 0;
  std::uint32_t reserved = 0;
  std::uint64_t payload_bytes = 0;
};

// Far above any record; a length beyond it means that the two ends do not understand each other.
constexpr std::uint64_t kPayloadBytesMax = std::uint64_t{1} << 36;

}  // namespace

Channel::~Channel() { ::close(fd_); }

bool Channel::send(MessageKind kind, const std::vector<std::uint8_t>& payload) {
  Frame frame;
  frame.kind = static_cast<std::uint32_t>(kind);
  frame.payload_bytes = payload.size();
  std::vector<std::uint8_t> bytes(sizeof(frame) + payload.size());
  std::memcpy(bytes.data(), &frame, sizeof(frame));
  std::copy(payload.begin(), payload.end(), bytes.begin() + sizeof(frame));

  const std::lock_guard<std::mutex> lock(send_mutex_);
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return false;
    }
    sent += static_cast<std::size_t>(count);
  }
  return true;
}

bool Channel::pump() {
  received_.erase(received_.begin(), received_.begin() + static_cast<std::ptrdiff_t>(taken_));
  taken_ = 0;
  std::array<std::uint8_t, 65536> piece;
  for (;;) {
    const ssize_t count = ::recv(fd_, piece.data(), piece.size(), MSG_DONTWAIT);
    if (count > 0) {
      received_.insert(received_.end(), piece.begin(), piece.begin() + count);
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else {
      return count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    }
  }
}

std::optional<Message> Channel::next() {
  Frame frame;
  if (received_.size() - taken_ < sizeof(frame)) {
    return std::nullopt;
  }
  std::memcpy(&frame, received_.data() + taken_, sizeof(frame));
  LOCKSTEP_CHECK(frame.kind <= static_cast<std::uint32_t>(MessageKind::kBroken) &&
                     frame.reserved == 0 && frame.payload_bytes <= kPayloadBytesMax,
                 "kind {}, {} bytes", frame.kind, frame.payload_bytes);
  const std::size_t end = taken_ + sizeof(frame) + frame.payload_bytes;
  if (received_.size() < end) {
    return std::nullopt;
  }
  Message message;
  message.kind = static_cast<MessageKind>(frame.kind);
  message.payload.assign(received_.begin() + static_cast<std::ptrdiff_t>(taken_ + sizeof(frame)),
                         received_.begin() + static_cast<std::ptrdiff_t>(end));
  taken_ = end;
  return message;
}

}  // namespace lockstep::harness
