// SPDX-License-Identifier: Apache-2.0
// Where the ranks of one run find each other: files in a private directory.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// A private directory (mode 0700) for the rendezvous of one run, and the run's token.
///
/// Whoever starts the ranks creates it and hands `path()` and `token()` to each of them. It may be
/// removed once a first collective has ended on every rank; until then ranks may still need it.
class RendezvousDirectory {
 public:
  /// Makes a new directory under `parent` (empty: $TMPDIR, else /tmp) with a new random token.
  /// Errors: UsageError if it cannot be made.
  static RendezvousDirectory create(const std::string& parent = {});

  /// Takes over the removal of a directory that another process, such as a parent that has died,
  /// created. Errors: UsageError as for `check_rendezvous_directory`.
  static RendezvousDirectory adopt(std::string path, std::string token);

  /// Removes the directory and all in it, unless this is a forked copy of the process that made
  /// this object.
  ~RendezvousDirectory();
  RendezvousDirectory(RendezvousDirectory&& other) noexcept;
  RendezvousDirectory& operator=(RendezvousDirectory&& other) noexcept;

  const std::string& path() const { return path_; }
  const std::string& token() const { return token_; }

  /// Removes it now; later calls do nothing.
  void remove() noexcept;

 private:
  RendezvousDirectory(std::string path, std::string token);

  std::string path_, token_;
  std::int64_t owner_pid_ = -1;
};

/// Errors: UsageError unless `path` is a directory (no link) that belongs to this user and that
///         nobody else may read, write or enter.
void check_rendezvous_directory(const std::string& path);

/// What one rank says about itself.
struct PeerRecord {
  std::int64_t rank = 0;
  std::int64_t world_size = 0;
  std::int64_t pid = 0;
  std::string host;     ///< name of the machine
  std::string address;  ///< what its transport has its peers know: a network address, or its GPU
};

struct GroupRendezvousOptions {
  std::string directory;
  std::string token;            ///< must be the token the directory was created with
  std::string group = "world";  ///< several groups may meet in one directory, each once
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::string address;                        ///< see PeerRecord
  std::chrono::milliseconds timeout{30'000};  ///< for everything together, from construction on
};

/// One rank's side of the meeting of a group, and the group's key-value store.
///
/// Threads: one thread at a time per object; ranks may share a process or not.
class GroupRendezvous {
 public:
  /// Errors: UsageError for options that cannot be, or a directory that may not be used.
  explicit GroupRendezvous(GroupRendezvousOptions options);

  /// Registers this rank and waits for all others. Result: [world_size], by rank.
  ///
  /// Errors: UsageError, on all ranks that are still waiting, for a token of another run (at once,
  ///         on the stranger alone), a rank that is taken, or world sizes that differ; also for a
  ///         loopback address where the ranks are on several machines.
  ///         TimedOut names the ranks that have not come.
  std::vector<PeerRecord> meet();

  /// Publishes a value under a name of its own. Errors: UsageError if the key is taken.
  void set(const std::string& key, const std::vector<char>& value);
  /// Waits for a value. Errors: TimedOut naming the key.
  std::vector<char> get(const std::string& key);
  /// Time left until the deadline, never negative.
  std::chrono::milliseconds remaining() const;

 private:
  std::string path_of(const std::string& name) const;
  void claim_token();
  void register_self();
  std::vector<PeerRecord> scan();
  [[noreturn]] void refuse(const std::string& message);

  GroupRendezvousOptions options_;
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace lockstep
