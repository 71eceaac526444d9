// SPDX-License-Identifier: Apache-2.0
// The meeting of a group: who may come, who is missing, what is told to whom.
#include "core/rendezvous.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "core/check.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr char kTokenName[] = "token";
constexpr char kConclusion[] = ".conclusion";
constexpr char kMet[] = "met";
constexpr char kTimedOut[] = "timed_out";
constexpr char kRecordFormat[] = "lockstep-rank-1";

std::string to_text(const PeerRecord& record) {
  return fmt::format("{} {} {} {} {} {}\n", kRecordFormat, record.rank, record.world_size,
                     record.pid, record.host, record.address);
}

std::optional<PeerRecord> parse_record(const std::string& text) {
  std::istringstream in(text);
  std::string format;
  PeerRecord record;
  in >> format >> record.rank >> record.world_size >> record.pid >> record.host >> record.address;
  if (!in || format != kRecordFormat) {
    return std::nullopt;
  }
  return record;
}

/// A refusal as ranks leave it for each other: its kind, a newline, its message.
std::string refusal_text(const std::string& kind, const std::string& message) {
  return kind + "\n" + message;
}

[[noreturn]] void throw_refusal(std::int64_t reader, const std::string& text) {
  const std::size_t end_of_kind = std::min(text.find('\n'), text.size());
  const std::string kind = text.substr(0, end_of_kind);
  const std::string told = text.substr(std::min(end_of_kind + 1, text.size()));
  const bool is_own = told.rfind(fmt::format("rank {}: ", reader), 0) == 0;
  const std::string message =
      is_own ? told : fmt::format("rank {}: the group cannot form: {}", reader, told);
  if (kind == kTimedOut) {
    throw TimedOut(message);
  }
  throw LaunchError(kind, message);
}

bool is_group_name(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

}  // namespace

/// Sleeps between looks at the store: short at first, since ranks usually come together, and never
/// for more than a hundredth of what has been waited already, or 5 ms.
class GroupRendezvous::Pause {
 public:
  explicit Pause(RendezvousClock& clock) : clock_(clock), begin_(clock.now()) {}
  void operator()() {
    clock_.sleep(next_);
    const auto longest =
        std::max<std::chrono::nanoseconds>(milliseconds(5), (clock_.now() - begin_) / 100);
    next_ = std::min(next_ * 2, longest);
  }

 private:
  RendezvousClock& clock_;
  decltype(clock_.now()) begin_;
  std::chrono::nanoseconds next_ = std::chrono::microseconds(100);
};

GroupRendezvous::GroupRendezvous(GroupRendezvousOptions options)
    : options_(std::move(options)),
      host_(options_.host != nullptr ? *options_.host : this_host()),
      clock_(options_.clock != nullptr ? *options_.clock : steady_clock()),
      deadline_(clock_.now() + options_.timeout) {
  LOCKSTEP_USAGE(options_.world_size >= 1, "world size {} is below 1", options_.world_size);
  if (options_.rank < 0 || options_.rank >= options_.world_size) {
    throw LaunchError("rank_out_of_range",
                      fmt::format("rank {} is outside 0..{} of world size {}: too many processes "
                                  "were started, or the world size is that of another run",
                                  options_.rank, options_.world_size - 1, options_.world_size));
  }
  LOCKSTEP_USAGE(!options_.token.empty(), "rank {}: no run token", options_.rank);
  LOCKSTEP_USAGE(is_group_name(options_.group),
                 "group name '{}' holds other than letters, digits, '_' and '-'", options_.group);
  LOCKSTEP_USAGE(options_.timeout.count() > 0, "rendezvous timeout of {} ms",
                 options_.timeout.count());
  if (options_.store == nullptr) {
    options_.store = open_rendezvous_directory(options_.directory);
  }
}

milliseconds GroupRendezvous::remaining() const {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - clock_.now());
  return std::max(left, milliseconds(0));
}

void GroupRendezvous::claim_token() {
  RendezvousStore& store = *options_.store;
  auto owner = store.read(kTokenName);
  if (!owner && !store.publish(kTokenName, options_.token)) {
    owner = store.read(kTokenName);
  }
  if (owner && *owner != options_.token) {
    throw LaunchError("foreign_run",
                      fmt::format("rank {}: {} belongs to run {}, this is run {}: it is stale or "
                                  "another job's; give each run a directory of its own",
                                  options_.rank, store.describe(), *owner, options_.token));
  }
}

/// "process 123 on host a", and whether it still runs where that can be known.
std::string GroupRendezvous::describe_process(const PeerRecord& record) const {
  const bool gone = record.host == host_.name() && !host_.is_running(record.pid);
  return fmt::format("process {} on host {}{}", record.pid, record.host,
                     gone ? ", which no longer runs" : "");
}

std::string GroupRendezvous::missing_text(const std::vector<PeerRecord>& found) const {
  std::set<std::int64_t> missing;
  for (std::int64_t rank = 0; rank < options_.world_size; ++rank) {
    missing.insert(rank);
  }
  for (const PeerRecord& record : found) {
    missing.erase(record.rank);
  }
  return fmt::format("{}", fmt::join(missing, ", "));
}

void GroupRendezvous::refuse(const std::string& kind, const std::string& message) {
  options_.store->publish(
      fmt::format("{}.refused.{}.{}", options_.group, options_.rank, host_.process_id()),
      refusal_text(kind, message));
  throw LaunchError(kind, message);
}

/// The first that has seen enough says how it ends for the whole group, and all follow it, for what
/// each of them has seen by then may differ. Returns if all meet.
void GroupRendezvous::conclude(const std::string& ending) {
  const std::string name = options_.group + kConclusion;
  const bool is_first = options_.store->publish(name, ending);
  const std::string text = is_first ? ending : options_.store->read(name).value_or(ending);
  if (text == met_text()) {
    return;
  }
  // Ranks that were told another world size have met without this one.
  const bool others_met = text.rfind(kMet, 0) == 0;
  throw_refusal(options_.rank, others_met ? ending : text);
}

/// Names the world size: ranks that were told others may be complete, too.
std::string GroupRendezvous::met_text() const {
  return refusal_text(kMet, std::to_string(options_.world_size));
}

void GroupRendezvous::listen() {
  if (!options_.listen) {
    return;
  }
  try {
    options_.address = options_.listen();
  } catch (const LaunchError& error) {
    refuse(error.kind(), fmt::format("rank {}: {}", options_.rank, error.what()));
  } catch (const UsageError& error) {
    refuse("no_such_interface", fmt::format("rank {}: {}", options_.rank, error.what()));
  }
}

void GroupRendezvous::register_self() {
  PeerRecord self;
  self.rank = options_.rank;
  self.world_size = options_.world_size;
  self.pid = host_.process_id();
  self.host = host_.name();
  self.address = options_.address.empty() ? "-" : options_.address;
  const std::string name = fmt::format("{}.rank.{}", options_.group, options_.rank);
  if (options_.store->publish(name, to_text(self))) {
    return;
  }
  const auto taken = parse_record(options_.store->read(name).value_or(""));
  const std::string missing = missing_text(scan().found);
  refuse("rank_taken",
         fmt::format("rank {} of group '{}' in {} is taken by {}; process {} on host {} wants it "
                     "too{}",
                     options_.rank, options_.group, options_.store->describe(),
                     taken ? describe_process(*taken) : "an unreadable record", self.pid, self.host,
                     missing.empty() ? "" : "; not come so far: " + missing));
}

GroupRendezvous::Seen GroupRendezvous::scan() {
  const std::string rank_prefix = options_.group + ".rank.";
  const std::string refused_prefix = options_.group + ".refused.";
  Seen seen;
  for (const std::string& name : options_.store->list()) {
    if (name.rfind(refused_prefix, 0) == 0 || name == options_.group + kConclusion) {
      seen.ending = options_.store->read(name);
    }
    if (name.rfind(rank_prefix, 0) == 0) {
      const auto record = parse_record(options_.store->read(name).value_or(""));
      if (!record) {
        seen.ending = refusal_text("store_unusable",
                                   fmt::format("rank {}: cannot read {} in {}", options_.rank, name,
                                               options_.store->describe()));
        continue;
      }
      seen.found.push_back(*record);
    }
  }
  std::sort(seen.found.begin(), seen.found.end(),
            [](const PeerRecord& a, const PeerRecord& b) { return a.rank < b.rank; });
  const auto is_stranger = [this](const PeerRecord& record) {
    return record.world_size != options_.world_size;
  };
  const auto stranger = std::find_if(seen.found.begin(), seen.found.end(), is_stranger);
  if (stranger != seen.found.end()) {
    seen.ending = refusal_text(
        "world_sizes_differ",
        fmt::format("world sizes differ: rank {} was told {}, rank {} ({}) was told {}",
                    options_.rank, options_.world_size, stranger->rank, describe_process(*stranger),
                    stranger->world_size));
    seen.found.erase(std::remove_if(stranger, seen.found.end(), is_stranger), seen.found.end());
  }
  return seen;
}

/// All ranks see the same records, but each knows best about its own address.
void GroupRendezvous::check_reachable(const std::vector<PeerRecord>& all) {
  std::set<std::string> hosts;
  for (const PeerRecord& record : all) {
    hosts.insert(record.host);
  }
  if (hosts.size() < 2) {
    return;
  }
  for (const PeerRecord& record : all) {
    if (is_loopback(record.address)) {
      refuse("loopback_address",
             fmt::format("rank {} listens on {}, which ranks on other machines ({}) cannot reach; "
                         "choose an interface{}",
                         record.rank, record.address, fmt::join(hosts, ", "),
                         record.host == host_.name() ? ": " + describe(host_.interfaces()) : ""));
    }
  }
}

std::vector<PeerRecord> GroupRendezvous::meet() {
  claim_token();
  listen();
  register_self();
  Seen seen = scan();
  for (Pause pause(clock_); static_cast<std::int64_t>(seen.found.size()) < options_.world_size;
       seen = scan()) {
    const bool is_late = remaining().count() == 0;
    const std::string late = refusal_text(
        kTimedOut,
        fmt::format("rank {}: after {} ms only {} of {} ranks have come to {}; missing: {}",
                    options_.rank, options_.timeout.count(), seen.found.size(), options_.world_size,
                    options_.store->describe(), missing_text(seen.found)));
    if (seen.ending || is_late) {
      conclude(seen.ending.value_or(late));
    }
    if (is_late) {
      throw_refusal(options_.rank, late);  // all have met, but the store does not show it
    }
    pause();
  }
  // A complete group has nothing to fear from a stranger that was refused.
  conclude(met_text());
  check_reachable(seen.found);
  deadline_ = clock_.now() + options_.timeout;  // the last to come has as much time to connect
  return seen.found;
}

void GroupRendezvous::set(const std::string& key, const std::vector<char>& value) {
  LOCKSTEP_USAGE(options_.store->publish(fmt::format("{}.key.{}", options_.group, key),
                                         std::string(value.begin(), value.end())),
                 "rank {}: key {} of group '{}' is taken", options_.rank, key, options_.group);
}

std::vector<char> GroupRendezvous::get(const std::string& key) {
  const std::string name = fmt::format("{}.key.{}", options_.group, key);
  for (Pause pause(clock_);; pause()) {
    if (const auto value = options_.store->read(name)) {
      return {value->begin(), value->end()};
    }
    if (remaining().count() == 0) {
      throw TimedOut(fmt::format("rank {}: no peer has published '{}' in {} within {} ms",
                                 options_.rank, key, options_.store->describe(),
                                 options_.timeout.count()));
    }
  }
}

}  // namespace lockstep
