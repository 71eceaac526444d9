// SPDX-License-Identifier: Apache-2.0
// Orders, signs of life, deaths and the end of one case in worker processes.
#include "harness/execute/process_case.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "core/check.h"

namespace lockstep::harness {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// Gloo must not give up before the watch has decided.
constexpr int kTransferTimeoutOverHang = 10;

std::int64_t to_ms(nanoseconds duration) {
  return std::max<std::int64_t>(1, duration_cast<milliseconds>(duration).count());
}

}  // namespace

ProcessCase::ProcessCase(WorkerPool& pool, std::vector<ProcessSpec> processes,
                         const ProcessCaseOptions& options)
    : pool_(pool),
      options_(options),
      processes_(std::move(processes)),
      ranks_(processes_.size()),
      is_closed_(ranks_.size(), false) {
  open_stores();
}

// In a launch the first process that comes makes the store its run's own, unless an earlier run
// has.
void ProcessCase::open_stores() {
  for (const ProcessSpec& process : processes_) {
    if (stores_.count(process.store) == 0) {
      stores_.emplace(process.store, RendezvousDirectory::create(pool_.directory()));
    }
  }
  if (!options_.launch.is_asked_for()) {
    return;
  }
  const std::string& left_behind_by = options_.launch.left_behind_by;
  for (const auto& [name, directory] : stores_) {
    std::filesystem::remove(directory.path() + "/token");
    if (!left_behind_by.empty()) {
      open_rendezvous_directory(directory.path())->publish("token", left_behind_by);
    }
  }
}

std::string ProcessCase::token_of(const ProcessSpec& process) const {
  return options_.launch.is_asked_for() ? process.run : stores_.at(process.store).token();
}

ProcessCase::Time ProcessCase::now() { return std::chrono::steady_clock::now().time_since_epoch(); }

std::vector<RankFate> ProcessCase::run(const std::string& case_toml) {
  try {
    send_orders(case_toml);
    meet();
    stores_.clear();
    watch();
    close();
  } catch (...) {
    // Nobody knows what these are doing now.
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (!ranks_[rank].died) {
        pool_.discard(static_cast<std::int64_t>(rank));
      }
    }
    throw;
  }
  return std::move(ranks_);
}

void ProcessCase::send_orders(const std::string& case_toml) {
  CaseOrder order;
  order.case_toml = case_toml;
  order.transport = options_.transport;
  order.connect_timeout_ms =
      options_.launch.is_asked_for() ? options_.launch.timeout_ms : to_ms(options_.connect_within);
  order.transfer_timeout_ms = options_.transfer_timeout_ms;
  if (order.transfer_timeout_ms == 0) {
    order.transfer_timeout_ms = to_ms(options_.watch.hang_after * kTransferTimeoutOverHang);
  }
  order.port = options_.launch.port;
  order.store_removed = options_.launch.store_removed;
  for (std::size_t i = 0; i < processes_.size(); ++i) {
    const ProcessSpec& process = processes_[i];
    order.rank = process.rank;
    order.world_size = process.world_size;
    order.directory = stores_.at(process.store).path();
    order.token = token_of(process);
    order.interface = process.interface;
    // A failure shows as the end of the channel, or as a rank that does not come.
    pool_.worker(static_cast<std::int64_t>(i)).channel().send(MessageKind::kCase, encode(order));
  }
}

/// Until all ranks have met, or cannot meet any more.
void ProcessCase::meet() {
  // Beyond the workers' own limit, so that what they have to say about it is heard.
  const Time deadline = now() + options_.connect_within + options_.close_within;
  for (;;) {
    const bool all_met = std::all_of(ranks_.begin(), ranks_.end(), [](const RankFate& rank) {
      return rank.is_connected || rank.ended;
    });
    const bool one_died = std::any_of(ranks_.begin(), ranks_.end(), [](const RankFate& rank) {
      return rank.died && !rank.is_connected;
    });
    if (all_met || one_died || !receive(deadline)) {
      return;
    }
  }
}

/// Until nobody moves any more.
void ProcessCase::watch() {
  if (!std::all_of(ranks_.begin(), ranks_.end(),
                   [](const RankFate& rank) { return rank.is_connected; })) {
    return;
  }
  watch_.emplace(static_cast<std::int64_t>(ranks_.size()), options_.watch, now());
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    // Those that were faster than the news that the last one had come.
    if (!ranks_[rank].is_live()) {
      watch_->note_ended(static_cast<std::int64_t>(rank),
                         ranks_[rank].ended ? ranks_[rank].ended->posted : 0, now());
    }
  }
  while (any_live()) {
    switch (watch_->advise(now())) {
      case Watch::Advice::kWait:
        receive(watch_->next_time());
        break;
      case Watch::Advice::kAsk:
        ask_all(watch_->round());
        break;
      case Watch::Advice::kStandsStill:
        for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
          if (!watch_->has_answered(static_cast<std::int64_t>(rank))) {
            ranks_[rank].where.reset();
          }
        }
        return;
    }
  }
}

void ProcessCase::ask_all(std::int64_t round) {
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].is_live()) {
      ranks_[rank].was_asked = true;
      pool_.worker(static_cast<std::int64_t>(rank))
          .channel()
          .send(MessageKind::kWhere, encode(WhereQuery{round}));
    }
  }
}

/// Frees the workers for the next case. Those that are not free in time are ended.
void ProcessCase::close() {
  // What comes from here on changes no record.
  const std::vector<RankFate> fates = ranks_;
  watch_.reset();
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].died) {
      continue;
    }
    // A rank that computes cannot be called back.
    const bool can_close =
        ranks_[rank].ended || (ranks_[rank].where && ranks_[rank].where->waiting);
    if (!can_close ||
        !pool_.worker(static_cast<std::int64_t>(rank)).channel().send(MessageKind::kOver)) {
      ranks_[rank].died = pool_.discard(static_cast<std::int64_t>(rank));
    }
  }
  const Time deadline = now() + options_.close_within;
  const auto is_settled = [this](std::size_t rank) {
    return is_closed_[rank] || ranks_[rank].died.has_value();
  };
  for (bool in_time = true; in_time;) {
    bool all_settled = true;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      all_settled = all_settled && is_settled(rank);
    }
    if (all_settled) {
      break;
    }
    in_time = receive(deadline);
  }
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!is_settled(rank)) {
      pool_.discard(static_cast<std::int64_t>(rank));
    }
  }
  ranks_ = fates;
}

/// Waits for news until `until`; false if there was none.
bool ProcessCase::receive(Time until) {
  std::vector<pollfd> fds;
  std::vector<std::int64_t> ranks;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].died && !is_closed_[rank]) {
      ranks.push_back(static_cast<std::int64_t>(rank));
      fds.push_back({pool_.worker(ranks.back()).channel().fd(), POLLIN, 0});
    }
  }
  const Time left = std::max(until - now(), Time{0});
  const auto timeout_ms = static_cast<int>(
      std::min<std::int64_t>(duration_cast<milliseconds>(left).count() + 1, 60'000));
  const int num_ready = ::poll(fds.data(), fds.size(), timeout_ms);
  LOCKSTEP_CHECK(num_ready >= 0 || errno == EINTR, "poll failed with {}", errno);
  for (std::size_t i = 0; num_ready > 0 && i < fds.size(); ++i) {
    if (fds[i].revents != 0) {
      drain(ranks[i]);
    }
  }
  return num_ready > 0 || now() < until;
}

void ProcessCase::drain(std::int64_t rank) {
  Channel& channel = pool_.worker(rank).channel();
  const bool is_alive = channel.pump();
  while (const std::optional<Message> message = channel.next()) {
    handle(rank, *message);
  }
  if (!is_alive) {
    note_death(rank);
  }
}

void ProcessCase::note_death(std::int64_t rank) {
  RankFate& fate = ranks_[static_cast<std::size_t>(rank)];
  fate.died = pool_.discard(rank);
  LOCKSTEP_CHECK(
      fate.is_connected || fate.died->signal != 0,
      "a worker process exited with status {} before it met its peers: its binary cannot "
      "be executed or is no worker",
      fate.died->status);
  if (watch_) {
    watch_->note_ended(rank, 0, now());
  }
}

void ProcessCase::handle(std::int64_t rank, const Message& message) {
  RankFate& fate = ranks_[static_cast<std::size_t>(rank)];
  switch (message.kind) {
    case MessageKind::kConnected:
      fate.is_connected = true;
      return;
    case MessageKind::kStep:
      fate.step = decode<StepNote>(message.payload).step;
      break;
    case MessageKind::kBeat:
      break;
    case MessageKind::kWhereabouts:
      fate.where = decode<Whereabouts>(message.payload);
      if (watch_) {
        Watch::Answer answer;
        answer.progress = fate.where->progress;
        if (fate.where->waiting) {
          answer.waiting_seq = fate.where->waiting->seq;
        }
        watch_->note_answer(rank, fate.where->round, answer, now());
      }
      return;
    case MessageKind::kEnded:
      fate.ended = decode<RankEnded>(message.payload);
      if (watch_) {
        watch_->note_ended(rank, fate.ended->posted, now());
      }
      return;
    case MessageKind::kClosed:
      is_closed_[static_cast<std::size_t>(rank)] = true;
      return;
    case MessageKind::kBroken:
      throw InvariantError(fmt::format("in the worker process of rank {}: {}", rank,
                                       decode<BrokenNote>(message.payload).text));
    default:
      throw InvariantError(fmt::format("the worker process of rank {} sent an order", rank));
  }
  if (watch_) {
    watch_->note_progress(now());
  }
}

bool ProcessCase::any_live() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const RankFate& rank) { return rank.is_live(); });
}

}  // namespace lockstep::harness
