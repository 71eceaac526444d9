// SPDX-License-Identifier: Apache-2.0
// What an executor and its worker processes say to each other, and the channel they use.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sim/world.h"

namespace lockstep::harness {

enum class MessageKind : std::uint32_t {
  // To the worker.
  kCase,   ///< CaseOrder: take part in this case
  kWhere,  ///< WhereQuery: say where you are
  kOver,   ///< no payload: the case is over, let go of everything that belongs to it
  // From the worker.
  kConnected,  ///< no payload: all ranks have met; the rendezvous directory is not needed any more
  kStep,       ///< StepNote: a training step begins
  kBeat,       ///< no payload: progress was made since the last sign of life
  kWhereabouts,  ///< Whereabouts: the answer to kWhere
  kEnded,        ///< RankEnded: the rank's body has ended, its connections are still open
  kClosed,       ///< no payload: ready for another case
  kBroken,       ///< BrokenNote: an InvariantError; the worker ends
};

/// One rank's part in a case.
struct CaseOrder {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::string case_toml;  ///< as printed by print_case
  std::string directory;  ///< of the RendezvousDirectory
  std::string token;      ///< of the RendezvousDirectory
  std::int64_t connect_timeout_ms = 0;
  std::int64_t transfer_timeout_ms = 0;
  std::string transport = "gloo";  ///< "gloo" | "c10d_gloo" | "nccl"
  // [launch] only:
  std::string interface;       ///< to listen on; empty: loopback
  std::int64_t port = 0;       ///< that must be free; 0: none
  bool store_removed = false;  ///< remove the directory when all have met, and meet once more
};

struct WhereQuery {
  std::int64_t round = 0;  ///< comes back in the answer
};

struct StepNote {
  std::int64_t step = 0;
};

/// Where a rank is. Two equal answers some time apart mean that it stood still in between.
struct Whereabouts {
  std::int64_t round = 0;
  std::int64_t progress = 0;                   ///< grows with every sign of life
  std::int64_t posted = 0;                     ///< collectives that the rank has issued
  std::optional<sim::CollectiveInfo> waiting;  ///< the collective that the rank waits in
  std::vector<std::uint8_t> position;          ///< serialize(RankBody::position()); may be empty
};

struct RankEnded {
  std::int64_t posted = 0;                       ///< collectives that the rank issued
  std::optional<sim::CollectiveInfo> failed_in;  ///< the first collective whose wait threw
  std::vector<std::uint8_t> record;              ///< serialize(RankBody::take_record())
};

struct BrokenNote {
  std::string text;
};

struct Message {
  MessageKind kind = MessageKind::kOver;
  std::vector<std::uint8_t> payload;
};

/// A payload as bytes, and back. Errors of `decode`: UsageError for bytes that are no such payload.
template <class Payload>
std::vector<std::uint8_t> encode(const Payload& payload);
template <class Payload>
Payload decode(const std::vector<std::uint8_t>& bytes);

/// One end of a connected stream socket that carries whole messages.
///
/// Threads: `send` may be called by several threads at once; `pump` and `next` by one.
class Channel {
 public:
  /// Owns `fd`, a connected stream socket in blocking mode.
  explicit Channel(int fd) : fd_(fd) {}
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int fd() const { return fd_; }

  /// False if the peer is gone, or takes nothing for as long as SO_SNDTIMEO says; the channel is
  /// of no use then.
  bool send(MessageKind kind, const std::vector<std::uint8_t>& payload = {});

  /// Reads what has arrived, without waiting. False once the peer is gone; messages that came
  /// before are still there.
  bool pump();

  /// The next complete message that has been read.
  std::optional<Message> next();

 private:
  int fd_;
  std::mutex send_mutex_;
  std::vector<std::uint8_t> received_;
  std::size_t taken_ = 0;  ///< bytes of received_ that `next` has handed out
};

}  // namespace lockstep::harness
