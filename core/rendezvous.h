// SPDX-License-Identifier: Apache-2.0
// How the ranks of one run find each other, and what they refuse.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/host.h"
#include "core/launch_error.h"
#include "core/rendezvous_directory.h"

namespace lockstep {

/// What one rank says about itself.
struct PeerRecord {
  std::int64_t rank = 0;
  std::int64_t world_size = 0;
  std::int64_t pid = 0;
  std::string host;     ///< name of the machine
  std::string address;  ///< what its transport has its peers know: a network address, or its GPU
};

struct GroupRendezvousOptions {
  std::string directory;        ///< unused where a store is given
  std::string token;            ///< must be the token the directory was created with
  std::string group = "world";  ///< several groups may meet in one store, each once
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::string address;  ///< see PeerRecord
  /// Opens the transport and returns the address in the place of `address`, if given; called once
  /// the store is known to be the right one. A UsageError it throws is told to the other ranks.
  std::function<std::string()> listen;
  /// For coming together, from construction on, and as much again for connecting.
  std::chrono::milliseconds timeout{30'000};
  std::shared_ptr<RendezvousStore> store;  ///< null: the directory
  const Host* host = nullptr;              ///< null: this machine; outlives the rendezvous
  RendezvousClock* clock = nullptr;        ///< null: the system's; outlives the rendezvous
};

/// One rank's side of the meeting of a group, and the group's key-value store.
///
/// Threads: one thread at a time per object; ranks may share a process or not.
class GroupRendezvous {
 public:
  /// Errors: UsageError for options that cannot be, LaunchError for a rank outside of the world or
  ///         a store that may not be used.
  explicit GroupRendezvous(GroupRendezvousOptions options);

  /// Registers this rank and waits for all others. Result: [world_size], by rank.
  ///
  /// Either all ranks return, or none does: nobody is left to wait for one that has given up.
  /// Errors: LaunchError, on all ranks unless they were complete before, for a rank that is taken,
  ///         world sizes that differ, what `listen` throws; also for a loopback address where the
  ///         ranks are on several machines; on the stranger alone, and at once, for a token of
  ///         another run. TimedOut, also on those that come later, names the ranks that have not
  ///         come.
  std::vector<PeerRecord> meet();

  /// Publishes a value under a name of its own. Errors: UsageError if the key is taken.
  void set(const std::string& key, const std::vector<char>& value);
  /// Waits for a value. Errors: TimedOut naming the key.
  std::vector<char> get(const std::string& key);
  /// Time left until the deadline, never negative.
  std::chrono::milliseconds remaining() const;

 private:
  class Pause;
  /// What is in the store at one moment.
  struct Seen {
    std::vector<PeerRecord> found;      ///< of this world size, by rank
    std::optional<std::string> ending;  ///< a refusal, or how the group has concluded, if any
  };

  void claim_token();
  void listen();
  void register_self();
  Seen scan();
  void conclude(const std::string& ending);
  std::string met_text() const;
  void check_reachable(const std::vector<PeerRecord>& all);
  std::string describe_process(const PeerRecord& record) const;
  std::string missing_text(const std::vector<PeerRecord>& found) const;
  [[noreturn]] void refuse(const std::string& kind, const std::string& message);

  GroupRendezvousOptions options_;
  const Host& host_;
  RendezvousClock& clock_;
  std::chrono::nanoseconds deadline_;
};

}  // namespace lockstep
