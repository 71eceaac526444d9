// SPDX-License-Identifier: Apache-2.0
// Fewer ranks, steps, micro-batches, forwards and samples.
#include <algorithm>
#include <set>
#include <vector>

#include "harness/fuzz/shrink/reductions.h"

namespace lockstep::harness::fuzz {

namespace {

using Numbers = std::vector<std::int64_t>;

/// 1, 2, the half, one less: each once, ascending.
std::set<std::int64_t> fewer_than(std::int64_t count) {
  std::set<std::int64_t> fewer;
  for (const std::int64_t value : {std::int64_t{1}, std::int64_t{2}, count / 2, count - 1}) {
    if (value >= 1 && value < count) fewer.insert(value);
  }
  return fewer;
}

/// What is beyond the end moves to the last that is left; a list of all is written as none.
void move_below(Numbers& list, std::int64_t limit) {
  if (list.empty()) return;
  std::set<std::int64_t> moved;
  for (const std::int64_t value : list) moved.insert(std::min(value, limit - 1));
  list.assign(moved.begin(), moved.end());
  if (static_cast<std::int64_t>(list.size()) == limit) list.clear();
}

/// Entries that name nobody below `limit` go.
template <class Entry>
void drop_beyond(std::vector<Entry>& entries, Numbers Entry::*list, std::int64_t limit) {
  const auto beyond = [&](const Entry& entry) {
    const Numbers& numbers = entry.*list;
    return !numbers.empty() && *std::min_element(numbers.begin(), numbers.end()) >= limit;
  };
  entries.erase(std::remove_if(entries.begin(), entries.end(), beyond), entries.end());
}

void set_steps(Case& value, std::int64_t steps) {
  value.train.steps = steps;
  for (std::int64_t& of_rank : value.train.steps_of_rank) of_rank = std::min(of_rank, steps);
  value.schedule.first_step = std::min(value.schedule.first_step, steps - 1);
  for (AtSpec& at : value.at) move_below(at.steps, steps);
  for (FaultSpec& fault : value.faults) move_below(fault.steps, steps);
}

void set_ranks(Case& value, std::int64_t ranks) {
  value.world.ranks = ranks;
  for (AtSpec& at : value.at) move_below(at.ranks, ranks);
  for (FaultSpec& fault : value.faults) move_below(fault.ranks, ranks);
  auto& processes = value.launch.processes;
  processes.erase(std::remove_if(processes.begin(), processes.end(),
                                 [&](const ProcessSpec& process) { return process.rank >= ranks; }),
                  processes.end());
  Numbers& steps = value.train.steps_of_rank;
  if (!steps.empty()) {
    steps.resize(static_cast<std::size_t>(ranks));
    set_steps(value, std::max<std::int64_t>(1, *std::max_element(steps.begin(), steps.end())));
  }
}

void set_window(Case& value, std::int64_t micro_batches, std::int64_t forwards,
                std::int64_t samples) {
  TrainSpec& train = value.train;
  train.micro_batches = micro_batches;
  train.forwards_per_backward = forwards;
  train.batch_per_rank = micro_batches * forwards * samples;
  if (forwards == 1) train.backward_from = TrainSpec{}.backward_from;
  for (AtSpec& at : value.at) {
    if (at.micro_batch) at.micro_batch = std::min(*at.micro_batch, micro_batches - 1);
    if (at.forward) at.forward = std::min(*at.forward, forwards - 1);
    if (at.micro_batches) at.micro_batches = std::min(*at.micro_batches, micro_batches);
    if (at.samples) at.samples = std::min(*at.samples / forwards, samples) * forwards;
  }
}

}  // namespace

void reduce_ranks(Candidates& candidates) {
  for (const std::int64_t ranks : fewer_than(candidates.value().world.ranks)) {
    const bool added = candidates.add([ranks](Case& value) { set_ranks(value, ranks); });
    if (added) continue;
    candidates.add([ranks](Case& value) {
      drop_beyond(value.at, &AtSpec::ranks, ranks);
      drop_beyond(value.faults, &FaultSpec::ranks, ranks);
      set_ranks(value, ranks);
    });
  }
}

void reduce_steps(Candidates& candidates) {
  const TrainSpec& train = candidates.value().train;
  for (const std::int64_t steps : fewer_than(train.steps)) {
    const bool added = candidates.add([steps](Case& value) { set_steps(value, steps); });
    if (added) continue;
    candidates.add([steps](Case& value) {
      drop_beyond(value.at, &AtSpec::steps, steps);
      drop_beyond(value.faults, &FaultSpec::steps, steps);
      set_steps(value, steps);
    });
  }
  candidates.add([](Case& value) {
    value.train.steps_of_rank.clear();
    value.ddp.join = DdpSpec{}.join;
  });
  candidates.add([](Case& value) { value.train.steps_of_rank.clear(); });
  for (std::size_t rank = 0; rank < train.steps_of_rank.size(); ++rank) {
    for (const std::int64_t steps : {std::int64_t{0}, std::int64_t{1}}) {
      if (train.steps_of_rank[rank] <= steps) continue;
      candidates.add([rank, steps](Case& value) { value.train.steps_of_rank[rank] = steps; });
    }
  }
}

void reduce_window(Candidates& candidates) {
  const TrainSpec& train = candidates.value().train;
  const std::int64_t micro_batches = train.micro_batches;
  const std::int64_t forwards = train.forwards_per_backward;
  const std::int64_t samples = train.batch_per_rank / micro_batches / forwards;
  const auto add = [&](std::int64_t new_micro, std::int64_t new_forwards,
                       std::int64_t new_samples) {
    return candidates.add(
        [=](Case& value) { set_window(value, new_micro, new_forwards, new_samples); });
  };
  add(1, 1, 1);
  add(1, 1, samples);
  for (const std::int64_t fewer : fewer_than(micro_batches)) add(fewer, forwards, samples);
  for (const std::int64_t fewer : fewer_than(forwards)) add(micro_batches, fewer, samples);
  std::set<std::int64_t> sample_counts = fewer_than(samples);
  sample_counts.insert(std::min(samples, candidates.value().world.ranks));
  for (const std::int64_t fewer : sample_counts) add(micro_batches, forwards, fewer);
}

}  // namespace lockstep::harness::fuzz
