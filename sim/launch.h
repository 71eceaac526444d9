// SPDX-License-Identifier: Apache-2.0
// How processes find each other on a simulated network: core's rendezvous on stores, hosts and a
// clock that are made up.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/host.h"
#include "sim/world.h"

namespace lockstep::sim {

/// A machine.
struct HostOptions {
  std::string name;
  std::vector<NetworkInterface> interfaces;
  std::map<std::string, std::string> names;  ///< its name table: name -> address
  std::vector<std::int64_t> held_ports;      ///< on every address, by other programs
};

/// What one process believes.
struct ProcessOptions {
  std::size_t host = 0;  ///< index
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::string token;
  std::string store;      ///< the name of the store it goes to
  std::string interface;  ///< see choose_listen_address
};

struct LaunchOptions {
  std::vector<HostOptions> hosts;
  std::vector<ProcessOptions> processes;
  std::int64_t port = 0;
  std::int64_t timeout_ms = 30'000;
  /// Token of a run that met in every one of the stores and was killed then; empty: none did.
  std::string left_behind_by;
  /// The stores are removed when all processes have met; then they meet once more.
  bool store_removed = false;
};

/// How it went for one process.
struct LaunchResult {
  std::string error_kind;  ///< empty: it met its peers. LaunchError's kinds, "timed_out"
  std::string error_message;
  ListenAddress listen;          ///< as far as it came
  std::int64_t ended_at_ns = 0;  ///< virtual time
};

struct LaunchRun {
  std::vector<LaunchResult> processes;  ///< in the order of the options
  WorldResult world;                    ///< of all processes
};

/// Starts all processes at time 0 and lets each run GroupRendezvous. Every access to a store is a
/// yield point of the schedule; pauses take virtual time. `world` says which schedule; its size
/// does not matter. Processes are no ranks that only meet in collectives, so that an exhaustive
/// search, which takes them for such, is of no use here.
///
/// Determinism: same options, same results at the same times.
/// Errors: UsageError for no host, no process, or a host that is not there.
LaunchRun run_launch(const LaunchOptions& options, WorldOptions world = {});

}  // namespace lockstep::sim
