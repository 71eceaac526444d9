// SPDX-License-Identifier: Apache-2.0
// States by step and kind, held against each other.
#include "harness/audit/compare_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace lockstep::harness {
namespace {

using Key = std::pair<std::int64_t, std::string>;  // step, what

std::string name_of(const Key& key) { return fmt::format("{} of step {}", key.second, key.first); }

using States = std::map<Key, const RecordedState*>;

std::vector<States> states_of(const std::vector<RankRecord>& records) {
  std::vector<States> result(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    for (const RecordedState& state : records[i].states) {
      result[i][{state.step, state.what}] = &state;
    }
  }
  return result;
}

const RecordedState* find(const States& states, const Key& key) {
  const auto found = states.find(key);
  return found != states.end() ? found->second : nullptr;
}

/// What of a step comes first is what the ranks recorded first.
std::vector<Key> keys_in_order(const std::vector<RankRecord>& records) {
  std::vector<std::string> kinds;
  std::set<std::pair<std::int64_t, std::int64_t>> keys;  // step, place in `kinds`
  for (const RankRecord& record : records) {
    for (const RecordedState& state : record.states) {
      auto place = std::find(kinds.begin(), kinds.end(), state.what);
      if (place == kinds.end()) place = kinds.insert(place, state.what);
      keys.emplace(state.step, place - kinds.begin());
    }
  }
  std::vector<Key> result;
  for (const auto& [step, place] : keys) {
    result.emplace_back(step, kinds[static_cast<std::size_t>(place)]);
  }
  return result;
}

struct Holder {
  std::int64_t rank = 0;
  const RecordedState* state = nullptr;
};

using Contents = std::map<std::string, std::string>;  // by tensor

bool same_tensors(const RecordedState& a, const RecordedState& b) {
  return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(),
                    [](const RecordedTensor& x, const RecordedTensor& y) {
                      return x.name == y.name && x.content == y.content;
                    });
}

/// Entries of `held` in the order of the holders, one for each content. Tensors may come in any
/// order.
std::optional<StateDifference> compare(const Key& key, const std::vector<Holder>& holders) {
  if (std::all_of(holders.begin(), holders.end(), [&](const Holder& holder) {
        return same_tensors(*holder.state, *holders.front().state);
      })) {
    return std::nullopt;
  }
  std::vector<Contents> contents(holders.size());
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (std::size_t i = 0; i < holders.size(); ++i) {
    for (const RecordedTensor& tensor : holders[i].state->tensors) {
      contents[i][tensor.name] = tensor.content;
      if (seen.insert(tensor.name).second) names.push_back(tensor.name);
    }
  }
  StateDifference difference;
  difference.step = key.first;
  difference.what = key.second;
  difference.num_tensors = static_cast<std::int64_t>(names.size());
  for (const std::string& name : names) {
    std::vector<HeldBy> held;
    for (std::size_t i = 0; i < holders.size(); ++i) {
      const auto found = contents[i].find(name);
      const std::string& content =
          found != contents[i].end() ? found->second : std::string("no such tensor");
      auto alike = std::find_if(held.begin(), held.end(),
                                [&](const HeldBy& by) { return by.content == content; });
      if (alike == held.end()) alike = held.insert(alike, {{}, content});
      alike->ranks.push_back(holders[i].rank);
    }
    if (held.size() > 1 && ++difference.num_differ == 1) {
      difference.tensor = name;
      difference.held = std::move(held);
    }
  }
  if (difference.num_differ == 0) return std::nullopt;
  return difference;
}

/// Of each kind of state, the ranks that lack steps that others have.
void note_gaps(const std::vector<RankRecord>& records, const std::vector<Key>& keys,
               const std::vector<States>& states, Audit& result) {
  std::map<std::string, std::vector<std::int64_t>> steps_of;
  for (const Key& key : keys) steps_of[key.second].push_back(key.first);
  for (const auto& [what, steps] : steps_of) {
    for (std::size_t i = 0; i < records.size(); ++i) {
      std::vector<std::int64_t> missing;
      for (const std::int64_t step : steps) {
        if (find(states[i], {step, what}) == nullptr) missing.push_back(step);
      }
      if (missing.empty()) continue;
      result.notes.push_back(
          fmt::format("rank {} recorded no {} of {} of {} steps, first of step {}", records[i].rank,
                      what, missing.size(), steps.size(), missing.front()));
    }
  }
}

}  // namespace

void compare_ranks(const std::vector<RankRecord>& records, Audit& result) {
  const std::vector<States> states = states_of(records);
  const std::vector<Key> keys = keys_in_order(records);
  std::string before;
  for (const Key& key : keys) {
    std::vector<Holder> holders;
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (const RecordedState* state = find(states[i], key)) {
        holders.push_back({records[i].rank, state});
      }
    }
    const bool own = std::all_of(holders.begin(), holders.end(),
                                 [](const Holder& holder) { return holder.state->own; });
    if (own || holders.size() < 2) continue;
    ++result.num_states;
    if (result.difference) continue;
    result.difference = compare(key, holders);
    if (result.difference) {
      std::vector<HeldBy>& held = result.difference->held;
      std::stable_sort(held.begin(), held.end(), [](const HeldBy& a, const HeldBy& b) {
        return a.ranks.size() > b.ranks.size();
      });
      result.difference->alike_before = before;
    }
    before = name_of(key);
  }
  note_gaps(records, keys, states, result);
}

void compare_runs(const std::vector<RankRecord>& records, const std::vector<RankRecord>& others,
                  Audit& result) {
  const bool by_rank = records.front().world_size == others.front().world_size;
  const std::vector<States> here = states_of(records), there = states_of(others);
  std::string before;
  std::int64_t num_alone = 0;
  for (const Key& key : keys_in_order(records)) {
    bool has_compared = false;
    for (std::size_t i = 0; i < records.size() && !result.from_other_run; ++i) {
      const RecordedState* state = find(here[i], key);
      if (state == nullptr || (state->own && !by_rank)) continue;
      std::size_t k = 0;
      while (by_rank && k < others.size() && others[k].rank != records[i].rank) ++k;
      const RecordedState* theirs = k < others.size() ? find(there[k], key) : nullptr;
      if (theirs == nullptr) {
        ++num_alone;
        continue;
      }
      ++result.num_states_of_others;
      has_compared = true;
      result.from_other_run = compare(key, {{records[i].rank, state}, {others[k].rank, theirs}});
      if (result.from_other_run) result.from_other_run->alike_before = before;
    }
    if (has_compared) before = name_of(key);
  }
  if (num_alone > 0) {
    result.notes.push_back(
        fmt::format("the other run has no such state for {} of this one's", num_alone));
  }
}

}  // namespace lockstep::harness
