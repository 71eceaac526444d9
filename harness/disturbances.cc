// SPDX-License-Identifier: Apache-2.0
// Matches entries with places, and carries out those that need nothing else.
#include "harness/disturbances.h"

#include <torch/types.h>

#include <algorithm>

#include "core/time_units.h"
#include "harness/fault_kinds.h"
#include "harness/program.h"

namespace lockstep::harness {
Disturbances::Disturbances(const Case& value, std::int64_t rank, const Position& position,
                           const RankServices& services)
    : value_(value), rank_(rank), position_(position), services_(services) {}

bool Disturbances::time_has_come(std::int64_t from_ms) const {
  return from_ms == 0 || (services_.now_ns && services_.now_ns() >= from_ms * kNsPerMs);
}

bool Disturbances::is_due(std::size_t index) const {
  const AtSpec& at = value_.at[index];
  const bool is_over = at.from_ms > 0 && events_done_.count(static_cast<std::int64_t>(index)) != 0;
  return time_has_come(at.from_ms) && !is_over && (first_attempt_ || !at.retry);
}

std::vector<std::size_t> Disturbances::events_at(const CollectiveTag& tag) const {
  std::vector<std::size_t> events;
  for (std::size_t i = 0; i < value_.at.size(); ++i) {
    const AtSpec& at = value_.at[i];
    if (!at.site.empty() && at.site == to_string(tag.site) && covers(at.ranks, rank_) &&
        covers(at.steps, step_of(tag)) && at.bucket.value_or(tag.bucket) == tag.bucket &&
        is_due(i)) {
      events.push_back(i);
    }
  }
  return events;
}

std::optional<std::size_t> Disturbances::fault_at(const CollectiveTag& tag) const {
  for (std::size_t i = 0; i < value_.faults.size(); ++i) {
    const FaultSpec& fault = value_.faults[i];
    if (site_of(fault) == to_string(tag.site) && covers(fault.ranks, rank_) &&
        covers(fault.steps, step_of(tag)) && fault.bucket.value_or(tag.bucket) == tag.bucket &&
        (time_has_come(fault.from_ms) || happens_at_completion(fault.kind))) {
      return i;
    }
  }
  return std::nullopt;
}

void Disturbances::carry_out(std::size_t index) {
  const AtSpec& at = value_.at[index];
  note_event(index);
  sleep_ms(at.sleep_ms);
  if (at.stall) {
    throw StandStill();
  }
  if (!at.raise.empty()) {
    if (at.retry) {
      throw CaughtError(at.raise);
    }
    throw ScriptError(at.raise);
  }
}

void Disturbances::fail_process(std::size_t index) {
  note_fault(index);
  if (services_.fail_process) {
    services_.fail_process(value_.faults[index].kind);
  }
}

void Disturbances::sleep_ms(std::int64_t duration_ms) const {
  if (duration_ms > 0 && services_.sleep) {
    services_.sleep(duration_ms * kNsPerMs);
  }
}

void Disturbances::note(std::size_t index, std::set<std::int64_t>& done) {
  const std::lock_guard<std::mutex> lock(mutex_);
  done.insert(static_cast<std::int64_t>(index));
}

std::vector<std::int64_t> Disturbances::list(const std::set<std::int64_t>& done) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {done.begin(), done.end()};
}

void issue_scripted(Communicator& communicator, const Case& value, std::size_t index,
                    std::int64_t step) {
  const AtSpec& at = value.at[index];
  // The position in the file tells two scripted collectives of the same shape apart; entries that
  // say the same for other ranks are one.
  const auto first =
      std::find_if(value.at.begin(), value.at.begin() + static_cast<std::ptrdiff_t>(index),
                   [&](const AtSpec& other) { return same_action(at, other); });
  const CollectiveTag tag{CallSite::kScript, step, first - value.at.begin()};
  const at::Tensor tensor = at::ones({at.collective_numel});
  std::unique_ptr<Work> work;
  if (at.collective == "all_reduce") {
    work = communicator.all_reduce(tensor, ReduceOp::kSum, tag);
  } else if (at.collective == "broadcast") {
    work = communicator.broadcast(tensor, 0, tag);
  } else if (at.collective == "all_gather") {
    work = communicator.all_gather(at::empty({communicator.world_size(), at.collective_numel}),
                                   tensor, tag);
  } else {
    work = communicator.barrier({CallSite::kBarrier, step, tag.bucket});
  }
  work->wait();
}

}  // namespace lockstep::harness
