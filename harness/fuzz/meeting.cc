// SPDX-License-Identifier: Apache-2.0
// The rules of rendezvous: who is refused, and why.
#include "harness/fuzz/meeting.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "harness/case_facts.h"

namespace lockstep::harness::fuzz {
namespace {

using Names = std::vector<std::pair<std::string, std::string>>;

const std::string* find_in(const Names& names, const std::string& name) {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const auto& entry) { return entry.first == name; });
  return found != names.end() ? &found->second : nullptr;
}

bool is_loopback(const std::string& address) { return address.rfind("127.", 0) == 0; }

// Where a process listens: at what its host is called, or at the interface that is asked for;
// "^lo,docker": at the first that begins with none of these. Empty: there is none.
std::string address_of(const HostSpec& host, const std::string& interface) {
  const std::string* address = nullptr;
  if (interface.empty()) {
    address = find_in(host.names, host.name);
  } else if (interface.front() != '^') {
    address = find_in(host.interfaces, interface);
  } else {
    for (const auto& [name, candidate] : host.interfaces) {
      bool excluded = false;
      for (std::size_t at = 1; at < interface.size();) {
        const std::size_t end = std::min(interface.find(',', at), interface.size());
        excluded = excluded || name.rfind(interface.substr(at, end - at), 0) == 0;
        at = end + 1;
      }
      if (!excluded) {
        address = &candidate;
        break;
      }
    }
  }
  return address != nullptr ? *address : "";
}

// A case without hosts has one that is called "host" and has a loopback interface only.
HostSpec host_of(const LaunchSpec& launch, const ProcessSpec& process) {
  if (launch.hosts.empty()) {
    HostSpec host;
    host.name = "host";
    host.interfaces = {{"lo", "127.0.0.1"}};
    host.names = {{"host", "127.0.0.1"}};
    return host;
  }
  const auto named = std::find_if(launch.hosts.begin(), launch.hosts.end(),
                                  [&](const HostSpec& host) { return host.name == process.host; });
  return named != launch.hosts.end() ? *named : launch.hosts.front();
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
           std::any_of(processes_.begin(), processes_.end(), [&](const ProcessSpec& process) {
             return process.store != processes_.front().store ||
                    process.interface.find('.') != std::string::npos;
           });
  }

  // The store is the first run's that comes to it, or one's that was killed.
  void find_other_runs() {
    std::set<std::string> runs;
    for (const ProcessSpec& process : processes_) runs.insert(process.run);
    const std::string& owner = value_.launch.left_behind_by;
    if (!owner.empty()) {
      found_.push_back(
          {runs.count(owner) == 0 ? "foreign_run" : "rank_taken", Meeting::Failing::kAll, {}});
    } else if (runs.size() > 1) {
      found_.push_back({"foreign_run", Meeting::Failing::kLate, {}});
    }
  }

  void find_wrong_ranks() {
    Meeting beyond{"rank_out_of_range", Meeting::Failing::kSome, {}};
    bool any_twice = false, any_other_size = false;
    for (const ProcessSpec& one : processes_) {
      std::set<std::int64_t> ranks;
      bool is_complete = true;
      for (const ProcessSpec& process : processes_) {
        if (process.run == one.run) {
          any_twice = !ranks.insert(process.rank).second || any_twice;
          any_other_size = any_other_size || process.world_size != one.world_size;
        }
      }
      for (std::int64_t rank = 0; rank < value_.world.ranks; ++rank) {
        is_complete = is_complete && ranks.count(rank) > 0;
      }
      all_complete_ = all_complete_ && is_complete;
    }
    for (std::size_t i = 0; i < processes_.size(); ++i) {
      if (processes_[i].rank >= processes_[i].world_size) {
        beyond.processes.push_back(static_cast<std::int64_t>(i));
      }
    }
    if (!beyond.processes.empty()) found_.push_back(beyond);
    if (any_other_size) found_.push_back({"world_sizes_differ", Meeting::Failing::kAll, {}});
    if (any_twice) {
      // Who is complete has nothing to fear from those that are refused.
      found_.push_back(
          {"rank_taken", all_complete_ ? Meeting::Failing::kLate : Meeting::Failing::kAll, {}});
    } else if (!all_complete_) {
      found_.push_back({"timed_out", Meeting::Failing::kAll, {}});
    }
  }

  void find_wrong_addresses() {
    std::set<std::string> hosts;
    bool any_missing = false, any_loopback = false;
    for (const ProcessSpec& process : processes_) {
      const HostSpec host = host_of(value_.launch, process);
      const std::string address = address_of(host, process.interface);
      hosts.insert(host.name);
      any_missing = any_missing || address.empty();
      any_loopback = any_loopback || is_loopback(address);
    }
    if (any_missing) {
      found_.push_back({"no_such_interface", Meeting::Failing::kAll, {}});
    } else if (any_loopback && hosts.size() > 1) {
      found_.push_back({"loopback_address", Meeting::Failing::kAll, {}});
    }
  }

  const Case& value_;
  std::vector<ProcessSpec> processes_;
  std::vector<Meeting> found_;
  bool all_complete_ = true;
};

}  // namespace

std::optional<Meeting> meeting_of(const Case& value) { return Findings(value).take(); }

}  // namespace lockstep::harness::fuzz
