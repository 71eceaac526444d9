// SPDX-License-Identifier: Apache-2.0
// Where ranks leave word for each other, and the clock they wait by.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// Entries that appear whole or not at all, and never change. Shared by the ranks of a run: files
/// of a directory, or the simulator's memory.
///
/// Threads: any, at once.
/// Errors:  LaunchError `store_unusable` where the store itself is gone or may not be used.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;

  /// Makes the entry appear. False if the name is taken; of several at once exactly one gets it.
  virtual bool publish(const std::string& name, const std::string& content) = 0;
  /// Empty if there is no such entry.
  virtual std::optional<std::string> read(const std::string& name) = 0;
  /// The names of all entries, in any order.
  virtual std::vector<std::string> list() = 0;
  /// "rendezvous directory /tmp/x", for messages.
  virtual std::string describe() const = 0;
};

/// Time that passes while ranks wait for each other: the system's, or the simulator's.
class RendezvousClock {
 public:
  virtual ~RendezvousClock() = default;
  /// Since any fixed moment.
  virtual std::chrono::nanoseconds now() const = 0;
  virtual void sleep(std::chrono::nanoseconds duration) = 0;
};

/// The system's steady clock.
RendezvousClock& steady_clock();

}  // namespace lockstep
