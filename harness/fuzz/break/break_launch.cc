// SPDX-License-Identifier: Apache-2.0
// Plants mistakes in how processes meet.
#include <algorithm>
#include <string>

#include "harness/fuzz/break/break_draws.h"

namespace lockstep::harness::fuzz {
namespace {

std::vector<ProcessSpec> one_of_each_rank(const Case& value, const std::string& run = "A") {
  std::vector<ProcessSpec> processes(static_cast<std::size_t>(value.world.ranks));
  for (std::size_t i = 0; i < processes.size(); ++i) {
    processes[i].rank = static_cast<std::int64_t>(i);
    processes[i].run = run;
  }
  return processes;
}

// Two or three hosts that are called by loopback addresses, a rank at least on each.
void spread_over_hosts(Case& value) {
  LaunchSpec& launch = value.launch;
  const std::int64_t count = std::min(value.world.ranks, number(2, 3));
  for (std::int64_t i = 0; i < count; ++i) {
    HostSpec host;
    host.name = "host" + std::to_string(i);
    host.interfaces = {{"lo", "127.0.0.1"}, {"eth0", "10.0.0." + std::to_string(i + 1)}};
    host.names = {{host.name, "127.0.0.1"}};
    launch.hosts.push_back(std::move(host));
  }
  for (std::size_t i = 0; i < launch.processes.size(); ++i) {
    launch.processes[i].host = launch.hosts[i % launch.hosts.size()].name;
  }
}

ProcessSpec& any_but_the_first(std::vector<ProcessSpec>& processes) {
  return processes[static_cast<std::size_t>(
      number(1, static_cast<std::int64_t>(processes.size()) - 1))];
}

}  // namespace

// With one rank some of these are none.
void plant_launch(Case& value, const std::string& mistake) {
  LaunchSpec& launch = value.launch;
  std::vector<ProcessSpec>& processes = launch.processes;
  const std::int64_t ranks = value.world.ranks;
  processes = one_of_each_rank(value);
  if (mistake == "launch_other_run") {
    std::vector<ProcessSpec> others = one_of_each_rank(value, "B");
    if (one_in(2)) {
      launch.left_behind_by = "A";
      processes = std::move(others);
    } else {
      processes.insert(processes.end(), others.begin(), others.end());
    }
  } else if (mistake == "launch_too_many") {
    const std::int64_t end = ranks + number(1, 3);
    for (std::int64_t rank = ranks; rank < end; ++rank) {
      processes.emplace_back().rank = rank;
    }
  } else if (ranks == 1) {
    return;
  } else if (mistake == "launch_other_size") {
    ProcessSpec& process = any_but_the_first(processes);
    process.world_size = number(process.rank + 1, ranks + 2);
  } else if (mistake == "launch_rank_twice") {
    ProcessSpec& process = any_but_the_first(processes);
    if (one_in(2)) {
      process.rank = number(0, ranks - 1);
    } else {
      const ProcessSpec again = process;
      processes.push_back(again);
    }
  } else if (mistake == "launch_rank_missing") {
    processes.erase(processes.begin() + number(1, ranks - 1));
    launch.timeout_ms = 3000;
  } else {
    spread_over_hosts(value);
    launch.interface = one_in(2) ? "" : "lo";
    if (mistake == "launch_interface") {
      launch.interface = one_in(2) ? "eth0" : "^lo";
      any_of(std::vector<HostSpec*>{&launch.hosts.front(), &launch.hosts.back()})
          ->interfaces.pop_back();
    }
  }
}

}  // namespace lockstep::harness::fuzz
