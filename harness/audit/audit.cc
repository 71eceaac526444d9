// SPDX-License-Identifier: Apache-2.0
// Compares records and sees who waits for ever.
#include "harness/audit/audit.h"

#include <algorithm>
#include <map>
#include <set>

#include "harness/judge/standstill.h"
#include "harness/report/standing.h"

namespace lockstep::harness {
namespace {

using Key = std::pair<std::int64_t, std::string>;  // step, what

/// A record's states, and how far it came with each kind of them.
class States {
 public:
  explicit States(const RankRecord& record) : rank_(record.run.rank) {
    for (const RecordedState& state : record.states) {
      by_key_[{state.step, state.what}] = &state;
      const auto last = last_.emplace(state.what, state.step).first;
      last->second = std::max(last->second, state.step);
    }
  }

  std::int64_t rank() const { return rank_; }
  /// Null: not recorded.
  const RecordedState* find(const Key& key) const {
    const auto found = by_key_.find(key);
    return found != by_key_.end() ? found->second : nullptr;
  }
  /// Whether it recorded this state or, which is a gap, only later ones.
  bool reached(const Key& key) const {
    const auto last = last_.find(key.second);
    return last != last_.end() && last->second >= key.first;
  }

 private:
  std::int64_t rank_;
  std::map<Key, const RecordedState*> by_key_;
  std::map<std::string, std::int64_t> last_;
};

std::vector<States> states_of(const std::vector<RankRecord>& records) {
  return {records.begin(), records.end()};
}

/// What of a step comes first is what the ranks recorded first.
std::vector<Key> states_in_order(const std::vector<RankRecord>& records) {
  std::vector<std::string> order;
  std::set<std::pair<std::int64_t, std::int64_t>> keys;  // step, place in `order`
  for (const RankRecord& record : records) {
    for (const RecordedState& state : record.states) {
      auto place = std::find(order.begin(), order.end(), state.what);
      if (place == order.end()) place = order.insert(place, state.what);
      keys.emplace(state.step, place - order.begin());
    }
  }
  std::vector<Key> result;
  for (const auto& [step, place] : keys) {
    result.emplace_back(step, order[static_cast<std::size_t>(place)]);
  }
  return result;
}

std::string name_of(const Key& key) { return key.second + " of step " + std::to_string(key.first); }

/// What one holds of a state; null: it has a gap there.
struct Holder {
  std::int64_t rank = 0;
  const RecordedState* state = nullptr;
};

bool are_alike(const std::vector<Holder>& holders) {
  const auto same = [](const RecordedTensor& a, const RecordedTensor& b) {
    return a.name == b.name && a.content == b.content;
  };
  return std::all_of(holders.begin(), holders.end(), [&](const Holder& holder) {
    const RecordedState *a = holders.front().state, *b = holder.state;
    return a == b || (a != nullptr && b != nullptr &&
                      std::equal(a->tensors.begin(), a->tensors.end(), b->tensors.begin(),
                                 b->tensors.end(), same));
  });
}

/// In the order of the holders.
std::vector<std::string> contents_of(const std::vector<Holder>& holders, const std::string& name) {
  std::vector<std::string> contents;
  for (const Holder& holder : holders) {
    std::string content = holder.state == nullptr ? "not recorded" : "no such tensor";
    for (std::size_t i = 0; holder.state != nullptr && i < holder.state->tensors.size(); ++i) {
      if (holder.state->tensors[i].name == name) content = holder.state->tensors[i].content;
    }
    contents.push_back(std::move(content));
  }
  return contents;
}

/// `held`: one entry for each holder, in their order. Empty if only the order of tensors differs.
std::optional<StateDifference> compare(const Key& key, const std::vector<Holder>& holders) {
  if (are_alike(holders)) return std::nullopt;
  std::vector<std::string> names;
  for (const Holder& holder : holders) {
    for (std::size_t i = 0; holder.state != nullptr && i < holder.state->tensors.size(); ++i) {
      const std::string& name = holder.state->tensors[i].name;
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  StateDifference difference;
  difference.step = key.first;
  difference.what = key.second;
  difference.num_tensors = static_cast<std::int64_t>(names.size());
  for (const std::string& name : names) {
    const std::vector<std::string> contents = contents_of(holders, name);
    if (std::set<std::string>(contents.begin(), contents.end()).size() == 1) continue;
    if (++difference.num_differ > 1) continue;
    difference.tensor = name;
    for (std::size_t i = 0; i < holders.size(); ++i) {
      difference.held.push_back({{holders[i].rank}, contents[i]});
    }
  }
  if (difference.num_differ == 0) return std::nullopt;
  return difference;
}

/// Ranks that hold the same share an entry, the most first.
void group(std::vector<std::pair<std::vector<std::int64_t>, std::string>>& held) {
  std::vector<std::pair<std::vector<std::int64_t>, std::string>> groups;
  for (const auto& [ranks, content] : held) {
    auto alike = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& entry) { return entry.second == content; });
    if (alike == groups.end()) alike = groups.insert(alike, {{}, content});
    alike->first.push_back(ranks.front());
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  held = std::move(groups);
}

void compare_ranks(const std::vector<RankRecord>& records, Audit& result) {
  const std::vector<States> ranks = states_of(records);
  std::string before;
  for (const Key& key : states_in_order(records)) {
    std::vector<Holder> holders;
    for (const States& rank : ranks) {
      if (rank.reached(key)) holders.push_back({rank.rank(), rank.find(key)});
    }
    const bool own = std::any_of(holders.begin(), holders.end(), [](const Holder& holder) {
      return holder.state != nullptr && holder.state->own;
    });
    if (own) continue;
    ++result.num_states;
    if (result.difference) continue;
    result.difference = compare(key, holders);
    if (result.difference) {
      group(result.difference->held);
      result.difference->alike_before = before;
    }
    before = name_of(key);
  }
}

void compare_runs(const std::vector<RankRecord>& records, const std::vector<RankRecord>& others,
                  Audit& result) {
  const bool by_rank = records.front().world_size == others.front().world_size;
  const std::vector<States> here = states_of(records), there = states_of(others);
  std::string before;
  for (const Key& key : states_in_order(records)) {
    for (const States& rank : here) {
      const auto other = std::find_if(there.begin(), there.end(), [&](const States& one) {
        return one.rank() == (by_rank ? rank.rank() : 0);
      });
      if (other == there.end()) continue;
      const RecordedState *state = rank.find(key), *theirs = other->find(key);
      if (state == nullptr || theirs == nullptr) continue;
      if (state->own && !by_rank) continue;
      ++result.num_states_of_other;
      result.from_other_run = compare(key, {{rank.rank(), state}, {other->rank(), theirs}});
      if (result.from_other_run) {
        result.from_other_run->alike_before = before;
        return;
      }
    }
    before = name_of(key);
  }
}

/// All ranks of the world, and for whom those wait that do: ranks that have issued nothing, or
/// something else, in the place of their collective.
Run run_of(const std::vector<RankRecord>& records, Audit& result) {
  Run run;
  run.ranks.resize(static_cast<std::size_t>(result.world_size));
  std::vector<bool> has_record(run.ranks.size(), false);
  for (const RankRecord& record : records) {
    const auto at = static_cast<std::size_t>(record.run.rank);
    run.ranks[at] = record.run;
    has_record[at] = true;
    if (record.run.ending == Ending::kWaiting && !record.run.waiting) {
      run.ranks[at].error_kind =
          record.is_cut ? "its record breaks off" : "its record says no more";
    }
  }
  for (std::size_t at = 0; at < run.ranks.size(); ++at) {
    if (has_record[at]) continue;
    run.ranks[at].rank = static_cast<std::int64_t>(at);
    run.ranks[at].ending = Ending::kWaiting;
    run.ranks[at].error_kind = "there is no record of it";
    result.without_record.push_back(run.ranks[at].rank);
  }
  for (RankRun& rank : run.ranks) {
    if (!rank.waiting) continue;
    const auto seq = static_cast<std::size_t>(rank.waiting->seq);
    const std::string own = collective_text(rank.collectives[seq]);
    for (const RankRun& other : run.ranks) {
      const bool is_there =
          seq < other.collectives.size() && collective_text(other.collectives[seq]) == own;
      if (!is_there) rank.waiting->waiting_for.push_back(other.rank);
    }
  }
  return run;
}

/// Ranks that have not ended and may go on, if only those for whom they wait do.
std::set<std::int64_t> may_go_on(const Run& run) {
  std::set<std::int64_t> going;
  for (bool grew = true; grew;) {
    grew = false;
    for (const RankRun& rank : run.ranks) {
      if (rank.ending != Ending::kWaiting || going.count(rank.rank) > 0) continue;
      const auto goes = [&](std::int64_t other) { return going.count(other) > 0; };
      if (!rank.waiting ||
          std::all_of(rank.waiting->waiting_for.begin(), rank.waiting->waiting_for.end(), goes)) {
        going.insert(rank.rank);
        grew = true;
      }
    }
  }
  return going;
}

RankState state_of(const RankRun& rank) {
  RankState state;
  state.rank = rank.rank;
  state.ending = rank.ending;
  state.at_step = rank.at_step;
  state.waiting = rank.waiting;
  state.error_kind = rank.error_kind;
  state.error_message = rank.error_message;
  return state;
}

}  // namespace

Audit audit(const std::vector<RankRecord>& records, const std::vector<RankRecord>* other) {
  Audit result;
  result.world_size = records.front().world_size;
  std::set<std::int64_t> steps;
  for (const RankRecord& record : records) {
    for (const StepRecord& step : record.run.steps) steps.insert(step.step);
    result.num_collectives =
        std::max(result.num_collectives, static_cast<std::int64_t>(record.run.collectives.size()));
  }
  result.steps.assign(steps.begin(), steps.end());
  compare_ranks(records, result);
  if (other != nullptr) compare_runs(records, *other, result);

  const Run run = run_of(records, result);
  const std::set<std::int64_t> going = may_go_on(run);
  const auto is_stuck = [&](const RankRun& rank) {
    return rank.ending == Ending::kWaiting && going.count(rank.rank) == 0;
  };
  const auto has_failed = [](const RankRun& rank) { return rank.ending == Ending::kFailed; };
  for (const RankRecord& record : records) {
    if (!record.has_end && going.count(record.run.rank) > 0) {
      result.without_end.push_back(record.run.rank);
    }
  }
  Outcome& outcome = result.outcome;
  outcome.wrong_pairing = first_wrong_pairing(run);
  if (std::any_of(run.ranks.begin(), run.ranks.end(), is_stuck)) {
    outcome.kind = OutcomeKind::kDeadlock;
    outcome.stuck = stuck_collectives(run);
  } else if (std::any_of(run.ranks.begin(), run.ranks.end(), has_failed)) {
    outcome.kind = OutcomeKind::kError;
  } else if (result.difference || result.from_other_run || outcome.wrong_pairing) {
    outcome.kind = OutcomeKind::kDiverged;
  }
  if (outcome.kind == OutcomeKind::kDeadlock || outcome.kind == OutcomeKind::kError ||
      !result.without_record.empty() || !result.without_end.empty()) {
    for (const RankRun& rank : run.ranks) outcome.ranks.push_back(state_of(rank));
  }
  outcome.diagnoses = diagnoses_of(outcome);
  return result;
}

bool is_in_lockstep(const Audit& audit, bool so_far) {
  return audit.outcome.kind == OutcomeKind::kEqual &&
         (so_far || (audit.without_record.empty() && audit.without_end.empty()));
}

}  // namespace lockstep::harness
