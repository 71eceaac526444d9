// SPDX-License-Identifier: Apache-2.0
// Simulated machines and stores, and the processes that meet there.
#include "sim/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/check.h"
#include "core/rendezvous.h"
#include "core/time_units.h"
#include "sim/world.h"

namespace lockstep::sim {
namespace {

using std::chrono::nanoseconds;

constexpr char kTokenName[] = "token";

/// Process i has this id; smaller ones belong to nobody who still runs.
constexpr std::int64_t kFirstProcessId = 1'000;

class SimHost final : public Host {
 public:
  /// `options` outlives this.
  SimHost(const HostOptions& options, std::int64_t process_id)
      : options_(options), process_id_(process_id) {}

  std::string name() const override { return options_.name; }
  std::vector<NetworkInterface> interfaces() const override { return options_.interfaces; }
  std::vector<std::string> resolve(const std::string& name) const override {
    const auto entry = options_.names.find(name);
    return entry != options_.names.end() ? std::vector<std::string>{entry->second}
                                         : std::vector<std::string>();
  }
  std::string why_not_listen(const std::string& /*address*/, std::int64_t port) const override {
    const bool is_held = std::find(options_.held_ports.begin(), options_.held_ports.end(), port) !=
                         options_.held_ports.end();
    return is_held ? "Address already in use" : "";
  }
  std::int64_t process_id() const override { return process_id_; }
  bool is_running(std::int64_t process_id) const override { return process_id >= kFirstProcessId; }

 private:
  const HostOptions& options_;
  std::int64_t process_id_;
};

/// What all processes share. Threads: whoever has the turn.
struct SharedStores {
  std::map<std::string, std::map<std::string, std::string>> entries;  ///< store, name -> content
  bool removed = false;
};

/// One process' view of a store.
class SimStore final : public RendezvousStore {
 public:
  /// References outlive this.
  SimStore(SharedStores& shared, std::string name, RankContext& context)
      : shared_(shared), name_(std::move(name)), context_(context) {}

  bool publish(const std::string& name, const std::string& content) override {
    return visit().emplace(name, content).second;
  }
  std::optional<std::string> read(const std::string& name) override {
    const auto& entries = visit();
    const auto entry = entries.find(name);
    return entry != entries.end() ? std::optional(entry->second) : std::nullopt;
  }
  std::vector<std::string> list() override {
    std::vector<std::string> names;
    for (const auto& [name, content] : visit()) {
      names.push_back(name);
    }
    return names;
  }
  std::string describe() const override { return "rendezvous store " + name_; }

 private:
  std::map<std::string, std::string>& visit() {
    context_.yield();
    if (shared_.removed) {
      throw LaunchError("store_unusable", fmt::format("{}: No such file or directory", describe()));
    }
    return shared_.entries[name_];
  }

  SharedStores& shared_;
  std::string name_;
  RankContext& context_;
};

class SimClock final : public RendezvousClock {
 public:
  /// `context` outlives this.
  explicit SimClock(RankContext& context) : context_(context) {}
  nanoseconds now() const override { return nanoseconds(context_.now_ns()); }
  void sleep(nanoseconds duration) override { context_.sleep_ns(duration.count()); }

 private:
  RankContext& context_;
};

class Launch {
 public:
  explicit Launch(const LaunchOptions& options)
      : options_(options), num_to_meet_(options.processes.size()) {
    LOCKSTEP_USAGE(!options.hosts.empty() && !options.processes.empty(),
                   "a launch needs hosts and processes; there are {} and {}", options.hosts.size(),
                   options.processes.size());
    for (const ProcessOptions& process : options.processes) {
      LOCKSTEP_USAGE(process.host < options.hosts.size(), "there is no host {}, only {}",
                     process.host, options.hosts.size());
      if (!options.left_behind_by.empty()) {
        leave_behind(process);
      }
    }
    run_.processes.resize(options.processes.size());
  }

  LaunchRun run(WorldOptions world) {
    world.world_size = static_cast<std::int64_t>(options_.processes.size());
    world.first_scheduled_step = -1;
    run_.world = run_world(world, [this](RankContext& context) { run_process(context); });
    return std::move(run_);
  }

 private:
  /// What the process' counterpart in the earlier run wrote.
  void leave_behind(const ProcessOptions& process) {
    auto& entries = stores_.entries[process.store];
    entries.emplace(kTokenName, options_.left_behind_by);
    entries.emplace(
        fmt::format("world.rank.{}", process.rank),
        fmt::format("lockstep-rank-1 {} {} {} {} 127.0.0.1\n", process.rank, process.world_size,
                    process.rank + 1, options_.hosts[process.host].name));
  }

  void run_process(RankContext& context) {
    const auto index = static_cast<std::size_t>(context.rank());
    LaunchResult& result = run_.processes[index];
    try_to_meet(context, options_.processes[index], "world", result);
    --num_to_meet_;
    if (options_.store_removed && result.error_kind.empty()) {
      while (num_to_meet_ > 0) {
        context.sleep_ns(kNsPerMs);
      }
      stores_.removed = true;
      try_to_meet(context, options_.processes[index], "subgroup", result);
    }
    result.ended_at_ns = context.now_ns();
  }

  void try_to_meet(RankContext& context, const ProcessOptions& process, const std::string& group,
                   LaunchResult& result) {
    try {
      meet(context, process, group, result);
    } catch (const LaunchError& error) {
      result.error_kind = error.kind();
      result.error_message = error.what();
    } catch (const TimedOut& error) {
      result.error_kind = "timed_out";
      result.error_message = error.what();
    }
  }

  void meet(RankContext& context, const ProcessOptions& process, const std::string& group,
            LaunchResult& result) {
    const SimHost host(options_.hosts[process.host], kFirstProcessId + context.rank());
    SimClock clock(context);
    GroupRendezvousOptions meeting;
    meeting.store = std::make_shared<SimStore>(stores_, process.store, context);
    meeting.host = &host;
    meeting.clock = &clock;
    meeting.token = process.token;
    meeting.group = group;
    meeting.rank = process.rank;
    meeting.world_size = process.world_size;
    meeting.timeout = std::chrono::milliseconds(options_.timeout_ms);
    meeting.listen = [&] {
      result.listen = choose_listen_address(host, process.interface, options_.port);
      return result.listen.address;
    };
    GroupRendezvous(std::move(meeting)).meet();
  }

  const LaunchOptions& options_;
  std::size_t num_to_meet_;
  SharedStores stores_;
  LaunchRun run_;
};

}  // namespace

LaunchRun run_launch(const LaunchOptions& options, WorldOptions world) {
  return Launch(options).run(std::move(world));
}

}  // namespace lockstep::sim
