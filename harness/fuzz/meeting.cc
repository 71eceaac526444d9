// SPDX-License-Identifier: Apache-2.0
// The rules of rendezvous: who is refused, and why.
#include "harness/fuzz/meeting.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/host.h"
#include "harness/case_facts.h"

namespace lockstep::harness::fuzz {
namespace {

using Failing = Meeting::Failing;

bool begins_with_any(const std::string& name, const std::string& prefixes) {
  for (std::size_t at = 0; at < prefixes.size();) {
    const std::size_t end = std::min(prefixes.find(',', at), prefixes.size());
    if (end > at && name.rfind(prefixes.substr(at, end - at), 0) == 0) return true;
    at = end + 1;
  }
  return false;
}

// What the host's own name stands for; empty: nothing.
std::string own_address(const HostSpec& host) {
  const auto own = std::find_if(host.names.begin(), host.names.end(),
                                [&](const auto& entry) { return entry.first == host.name; });
  return own != host.names.end() ? own->second : "";
}

// Where a process listens: at its host's own name, which must stand for loopback or an interface;
// at the interface that is asked for; "^lo,docker": at the first that begins with none of these.
// Empty: nowhere.
std::string address_of(const HostSpec& host, const std::string& wanted) {
  const std::string own = own_address(host);
  if (wanted.empty() && is_loopback(own)) {
    return own;
  }
  for (const auto& [name, address] : host.interfaces) {
    const bool is_chosen = wanted.empty()          ? address == own
                           : wanted.front() == '^' ? !begins_with_any(name, wanted.substr(1))
                                                   : name == wanted;
    if (is_chosen) return address;
  }
  return "";
}

HostSpec host_of(const Case& value, const ProcessSpec& process) {
  const std::vector<HostSpec> hosts = hosts_of(value);
  const auto named = std::find_if(hosts.begin(), hosts.end(),
                                  [&](const HostSpec& host) { return host.name == process.host; });
  return named != hosts.end() ? *named : hosts.front();
}

bool has_version_6(const HostSpec& host) {
  const auto is_6 = [](const auto& entry) { return entry.second.find(':') != std::string::npos; };
  return std::any_of(host.interfaces.begin(), host.interfaces.end(), is_6) ||
         std::any_of(host.names.begin(), host.names.end(), is_6);
}

class Findings {
 public:
  explicit Findings(const Case& value) : value_(value), processes_(processes_of(value)) {}

  std::optional<Meeting> take() {
    if (!value_.launch.is_asked_for()) return Meeting();
    if (is_beyond_these_rules()) return std::nullopt;
    find_other_runs();
    find_wrong_ranks();
    find_wrong_addresses();
    if (found_.size() > 1) return std::nullopt;
    return found_.empty() ? Meeting() : found_.front();
  }

 private:
  bool is_beyond_these_rules() const {
    const LaunchSpec& launch = value_.launch;
    return launch.port != 0 || launch.store_removed ||
           std::any_of(launch.hosts.begin(), launch.hosts.end(), has_version_6) ||
           std::any_of(processes_.begin(), processes_.end(), [&](const ProcessSpec& process) {
             return process.store != processes_.front().store ||
                    process.interface.find_first_of(".:") != std::string::npos;
           });
  }

  void find(const char* error, Failing failing, std::vector<std::int64_t> processes = {}) {
    found_.push_back({error, failing, std::move(processes)});
  }

  // The store is the first run's that comes to it, or one's that was killed.
  void find_other_runs() {
    std::set<std::string> runs;
    for (const ProcessSpec& process : processes_) runs.insert(process.run);
    const std::string& owner = value_.launch.left_behind_by;
    if (!owner.empty() && runs.count(owner) > 0) {
      find("rank_taken", Failing::kAll);
    }
    if (!owner.empty() && (runs.size() > 1 || runs.count(owner) == 0)) {
      find("foreign_run", Failing::kAll);
    } else if (runs.size() > 1) {
      find("foreign_run", Failing::kLate);
    }
  }

  void find_wrong_ranks() {
    bool any_twice = false, any_other_size = false, all_complete = true;
    std::vector<std::int64_t> beyond;
    for (std::size_t i = 0; i < processes_.size(); ++i) {
      std::set<std::int64_t> ranks;
      for (const ProcessSpec& process : processes_) {
        if (process.run == processes_[i].run) {
          any_twice = !ranks.insert(process.rank).second || any_twice;
          any_other_size = any_other_size || process.world_size != processes_[i].world_size;
        }
      }
      for (std::int64_t rank = 0; rank < value_.world.ranks; ++rank) {
        all_complete = all_complete && ranks.count(rank) > 0;
      }
      if (processes_[i].rank >= processes_[i].world_size) {
        beyond.push_back(static_cast<std::int64_t>(i));
      }
    }
    if (!beyond.empty()) find("rank_out_of_range", Failing::kSome, beyond);
    if (any_other_size) find("world_sizes_differ", Failing::kAll);
    if (any_twice) {
      // Who is complete has nothing to fear from those that are refused.
      find("rank_taken", all_complete ? Failing::kLate : Failing::kAll);
    } else if (!all_complete) {
      find("timed_out", Failing::kAll);
    }
  }

  void find_wrong_addresses() {
    std::set<std::string> hosts;
    bool any_missing = false, any_loopback = false;
    for (const ProcessSpec& process : processes_) {
      const HostSpec host = host_of(value_, process);
      const std::string address = address_of(host, process.interface);
      hosts.insert(host.name);
      any_missing = any_missing || address.empty();
      any_loopback = any_loopback || is_loopback(address);
    }
    if (any_missing) {
      find("no_such_interface", Failing::kAll);
    } else if (any_loopback && hosts.size() > 1) {
      find("loopback_address", Failing::kAll);
    }
  }

  const Case& value_;
  std::vector<ProcessSpec> processes_;
  std::vector<Meeting> found_;
};

}  // namespace

std::optional<Meeting> meeting_of(const Case& value) { return Findings(value).take(); }

bool all_meet(const Case& value) {
  const std::optional<Meeting> meeting = meeting_of(value);
  return meeting && meeting->error.empty();
}

}  // namespace lockstep::harness::fuzz
