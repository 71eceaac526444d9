// SPDX-License-Identifier: Apache-2.0
// From [launch] to simulated processes, and to the records of real or simulated ones.
#include "harness/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"
#include "sim/launch.h"

namespace lockstep::harness {
namespace {

constexpr char kPhase[] = "rendezvous";

sim::LaunchOptions launch_options(const Case& value) {
  sim::LaunchOptions options;
  const std::vector<HostSpec> hosts = hosts_of(value);
  for (const HostSpec& host : hosts) {
    sim::HostOptions simulated{
        host.name, {}, {host.names.begin(), host.names.end()}, host.held_ports};
    for (const auto& [name, address] : host.interfaces) {
      simulated.interfaces.push_back({name, address});
    }
    options.hosts.push_back(std::move(simulated));
  }
  for (const ProcessSpec& process : processes_of(value)) {
    const auto host = std::find_if(hosts.begin(), hosts.end(), [&](const HostSpec& other) {
      return other.name == process.host;
    });
    LOCKSTEP_CHECK(process.host.empty() || host != hosts.end(), "no host '{}'", process.host);
    options.processes.push_back(
        {process.host.empty() ? 0 : static_cast<std::size_t>(host - hosts.begin()), process.rank,
         process.world_size, process.run, process.store, process.interface});
  }
  options.port = value.launch.port;
  options.timeout_ms = value.launch.timeout_ms;
  options.left_behind_by = value.launch.left_behind_by;
  options.store_removed = value.launch.store_removed;
  return options;
}

}  // namespace

bool is_failed_launch(const Run& run) {
  return std::any_of(run.ranks.begin(), run.ranks.end(), [](const RankRun& rank) {
    return rank.ending == Ending::kFailed && rank.at_phase == kPhase;
  });
}

std::vector<RankRun> simulate_launch(const Case& value, const sim::WorldOptions& world,
                                     sim::WorldResult& result) {
  const sim::LaunchOptions options = launch_options(value);
  sim::LaunchRun launch = sim::run_launch(options, world);
  std::vector<RankRun> records;
  for (std::size_t i = 0; i < launch.processes.size(); ++i) {
    const sim::LaunchResult& process = launch.processes[i];
    RankRun record;
    record.rank = static_cast<std::int64_t>(i);
    record.at_phase = kPhase;
    record.ended_at_ns = process.ended_at_ns;
    if (!process.listen.address.empty()) {
      record.listens_on =
          fmt::format("rank {} on host {} listens on {}", options.processes[i].rank,
                      options.hosts[options.processes[i].host].name, describe(process.listen));
    }
    if (!process.error_kind.empty()) {
      record.ending = Ending::kFailed;
      record.error_kind = process.error_kind;
      record.error_message = process.error_message;
    }
    records.push_back(std::move(record));
  }
  result = std::move(launch.world);
  return records;
}

std::vector<RankRun> of_first_run(const Case& value, std::vector<RankRun> records) {
  const std::vector<ProcessSpec> processes = processes_of(value);
  std::vector<RankRun> ranks(static_cast<std::size_t>(value.world.ranks));
  for (std::size_t i = 0; i < processes.size(); ++i) {
    if (processes[i].run == processes.front().run &&
        processes[i].store == processes.front().store) {
      RankRun& rank = ranks.at(static_cast<std::size_t>(processes[i].rank));
      rank = std::move(records.at(i));
      rank.rank = processes[i].rank;
    }
  }
  return ranks;
}

}  // namespace lockstep::harness
