// SPDX-License-Identifier: Apache-2.0
// Contradictions in [launch], and in how its processes are expected to end.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "core/host.h"
#include "harness/case_facts.h"
#include "harness/scenario/rules.h"

namespace lockstep::harness {
namespace {

void check_hosts(const LaunchSpec& launch, std::vector<CaseFinding>& findings) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < launch.hosts.size(); ++i) {
    const HostSpec& host = launch.hosts[i];
    const std::string path = fmt::format("launch.hosts.{}", i);
    if (!names.insert(host.name).second) {
      findings.push_back(
          {{path + ".name"},
           fmt::format("there are two hosts '{}'; expected another name", host.name)});
    }
    for (const auto* table : {&host.interfaces, &host.names}) {
      const char* key = table == &host.names ? "names" : "interfaces";
      for (const auto& [name, address] : *table) {
        if (!is_numeric_address(address)) {
          findings.push_back(
              {{fmt::format("{}.{}.{}", path, key, name), path},
               fmt::format("'{}' is no address; expected one like \"10.0.0.1\"", address)});
        }
      }
    }
  }
  for (std::size_t i = 0; i < launch.processes.size(); ++i) {
    const std::string& host = launch.processes[i].host;
    if (!host.empty() && names.count(host) == 0) {
      findings.push_back(
          {{fmt::format("launch.processes.{}.host", i), "launch.hosts"},
           fmt::format("there is no host '{}'; expected one of launch.hosts", host)});
    }
  }
}

}  // namespace

void check_launch(const Case& value, std::vector<CaseFinding>& findings) {
  if (!value.launch.is_asked_for()) {
    if (value.launch.timeout_ms != LaunchSpec().timeout_ms) {
      findings.push_back({{"launch.timeout_ms", "launch"},
                          "timeout_ms alone does not make the processes meet; expected another key "
                          "of [launch] too, such as interface = \"lo\""});
    }
    return;
  }
  check_hosts(value.launch, findings);
  const std::vector<ProcessSpec> processes = processes_of(value);
  if (processes.front().world_size != value.world.ranks) {
    findings.push_back(
        {{"launch.processes.0.world_size", "launch.processes", "world.ranks"},
         fmt::format("the run of the first process is the one that trains, with world.ranks = {}, "
                     "but that process believes in {} ranks",
                     value.world.ranks, processes.front().world_size)});
  }
  if (processes.size() > 64) {
    findings.push_back(
        {{"launch.processes"},
         fmt::format("{} processes are started; expected at most 64", processes.size())});
  }
  if (value.schedule.policy == "exhaustive") {
    findings.push_back({{"schedule.policy", "launch"},
                        "processes that meet through a store are not independent, which an "
                        "exhaustive search takes them for; expected \"random\" or \"pct\""});
  }
}

void check_expected_ends(const Case& value, const ExpectSpec& expect, const std::string& path,
                         std::vector<CaseFinding>& findings) {
  const auto num_ends = std::max<std::int64_t>(
      value.world.ranks, static_cast<std::int64_t>(value.launch.processes.size()));
  for (std::size_t i = 0; i < expect.ends.size(); ++i) {
    const ExpectEnd& end = expect.ends[i];
    const std::string at = fmt::format("{}.ends.{}", path, i);
    if (end.ending.empty() && end.error.empty() && end.message.empty() && !end.step &&
        !end.parameters_of_step && !end.within_ms) {
      findings.push_back({{at},
                          "this entry of ends says who and not how; expected one of ending, error, "
                          "message, step, parameters_of_step and within_ms"});
    }
    for (const std::int64_t rank : end.ranks) {
      if (rank >= num_ends) {
        findings.push_back(
            {{at + ".ranks", at + ".rank", at},
             fmt::format("there is no rank {}; expected 0 to {}", rank, num_ends - 1)});
      }
    }
    if (end.parameters_of_step.value_or(-1) >= value.train.steps) {
      findings.push_back({{at + ".parameters_of_step", "train.steps"},
                          fmt::format("there is no step {}; train.steps is {}",
                                      *end.parameters_of_step, value.train.steps)});
    }
  }
}

}  // namespace lockstep::harness
