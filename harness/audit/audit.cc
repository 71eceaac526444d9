// SPDX-License-Identifier: Apache-2.0
// Who waits for ever, and what the whole comes to.
#include "harness/audit/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "harness/audit/compare_states.h"
#include "harness/judge/standstill.h"

namespace lockstep::harness {
namespace {

/// Ranks that have not issued what `rank` waits in, or something else in its place.
std::vector<std::int64_t> missing_from(const Run& run, const RankRun& rank, std::int64_t seq,
                                       std::int64_t root) {
  std::vector<std::int64_t> missing;
  const auto at = static_cast<std::size_t>(seq);
  for (const RankRun& other : run.ranks) {
    if (root >= 0 && other.rank != root) continue;
    const bool is_there = at < other.collectives.size() &&
                          same_collective(other.collectives[at], rank.collectives[at]);
    if (!is_there) missing.push_back(other.rank);
  }
  return missing;
}

/// Of several waits, such as those of hooks, the first in which somebody is missing.
void find_wait(const Run& run, const RankRecord& record, RankRun& rank) {
  for (const std::int64_t seq : record.waits) {
    const auto at = static_cast<std::size_t>(seq);
    const CollectiveRecord& in = rank.collectives[at];
    rank.waiting = WaitingIn{
        in.collective, in.site,  seq,      in.step,
        in.bucket,     in.numel, in.dtype, missing_from(run, rank, seq, record.roots[at])};
    if (!rank.waiting->waiting_for.empty()) return;
  }
}

/// Step in progress, from what was recorded and issued; also the number of steps.
void note_steps(const RankRecord& record, RankRun& rank) {
  std::set<std::int64_t> steps;
  for (const RecordedState& state : record.states) {
    steps.insert(state.step);
    rank.at_step = std::max(rank.at_step, state.step + 1);
  }
  for (const CollectiveRecord& collective : record.collectives) {
    if (collective.step >= 0) steps.insert(collective.step);
    rank.at_step = std::max(rank.at_step, collective.step);
  }
  rank.steps.resize(steps.size());
}

/// All ranks of the world.
Run run_of(const std::vector<RankRecord>& records) {
  Run run;
  run.ranks.resize(static_cast<std::size_t>(records.front().world_size));
  for (std::size_t at = 0; at < run.ranks.size(); ++at) {
    run.ranks[at].rank = static_cast<std::int64_t>(at);
    run.ranks[at].ending = Ending::kWaiting;
    run.ranks[at].error_kind = "there is no record of it";
  }
  for (const RankRecord& record : records) {
    RankRun& rank = run.ranks[static_cast<std::size_t>(record.rank)];
    rank.collectives = record.collectives;
    rank.error_kind = record.is_cut ? "its record breaks off" : "its record says no more";
    note_steps(record, rank);
    if (record.end) {
      rank.ending = *record.end;
      rank.error_kind = *record.end == Ending::kFailed ? "error" : "";
      rank.error_message = record.error;
    } else if (!record.failed_waits.empty() && record.waits.empty()) {
      rank.ending = Ending::kFailed;
      rank.error_kind = "error";
      rank.error_message = record.failed_waits.back().second;
    }
  }
  for (const RankRecord& record : records) {
    RankRun& rank = run.ranks[static_cast<std::size_t>(record.rank)];
    if (rank.ending == Ending::kWaiting) find_wait(run, record, rank);
    if (rank.waiting) rank.error_kind.clear();
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

/// Where ranks first issued different collectives or, once all have ended, only some did.
std::optional<WrongPairing> wrong_pairing_of(const Run& run) {
  std::optional<WrongPairing> pairing = first_wrong_pairing(run);
  if (pairing) {
    pairing->is_mixed = false;  // whether their data fitted is not recorded
    return pairing;
  }
  const auto fewer = [](const RankRun& a, const RankRun& b) {
    return a.collectives.size() < b.collectives.size();
  };
  const auto [least, most] = std::minmax_element(run.ranks.begin(), run.ranks.end(), fewer);
  const bool have_ended = std::all_of(run.ranks.begin(), run.ranks.end(), [](const RankRun& rank) {
    return rank.ending == Ending::kFinished;
  });
  const std::size_t seq = least->collectives.size();
  if (!have_ended || seq == most->collectives.size()) return std::nullopt;
  pairing.emplace();
  pairing->seq = static_cast<std::int64_t>(seq);
  pairing->issued.push_back({most->collectives[seq], {}});
  for (const RankRun& rank : run.ranks) {
    const bool has_issued = rank.collectives.size() > seq;
    (has_issued ? pairing->issued.front().ranks : pairing->nothing).push_back(rank.rank);
  }
  return pairing;
}

void judge_ends(const std::vector<RankRecord>& records, Audit& result) {
  Run run = run_of(records);
  const std::set<std::int64_t> going = may_go_on(run);
  bool is_stuck = false, has_failed = false;
  for (const RankRun& rank : run.ranks) {
    is_stuck = is_stuck || (rank.ending == Ending::kWaiting && going.count(rank.rank) == 0);
    has_failed = has_failed || rank.ending == Ending::kFailed;
  }
  std::set<std::int64_t> recorded;
  for (const RankRecord& record : records) {
    recorded.insert(record.rank);
    if (going.count(record.rank) > 0) result.without_end.push_back(record.rank);
    for (const auto& [seq, error] : record.failed_waits) {
      has_failed = true;
      result.notes.push_back(
          fmt::format("on rank {} the wait for seq {} failed: {}", record.rank, seq, error));
    }
  }
  for (const RankRun& rank : run.ranks) {
    if (recorded.count(rank.rank) == 0) result.without_record.push_back(rank.rank);
  }
  Outcome& outcome = result.outcome;
  outcome.wrong_pairing = wrong_pairing_of(run);
  outcome.kind = is_stuck     ? OutcomeKind::kDeadlock
                 : has_failed ? OutcomeKind::kError
                 : result.difference || result.from_other_run || outcome.wrong_pairing
                     ? OutcomeKind::kDiverged
                     : OutcomeKind::kEqual;
  if (is_stuck || has_failed || !result.without_record.empty() || !result.without_end.empty()) {
    for (const RankRun& rank : run.ranks) outcome.ranks.push_back(state_of(rank));
  }
  for (RankRun& rank : run.ranks) {
    if (going.count(rank.rank) > 0) rank.waiting.reset();
  }
  if (is_stuck) outcome.stuck = stuck_collectives(run);
  for (StuckCollective& stuck : outcome.stuck) {
    for (Absence& absence : stuck.absent) {
      // What such a rank does nobody knows.
      if (going.count(absence.rank) > 0) {
        absence.instead = run.ranks[static_cast<std::size_t>(absence.rank)].error_kind;
      }
    }
  }
}

}  // namespace

Audit audit(const std::vector<RankRecord>& records, const std::vector<RankRecord>* other) {
  Audit result;
  result.world_size = records.front().world_size;
  std::set<std::int64_t> steps;
  for (const RankRecord& record : records) {
    for (const RecordedState& state : record.states) steps.insert(state.step);
    result.num_collectives =
        std::max(result.num_collectives, static_cast<std::int64_t>(record.collectives.size()));
  }
  result.steps.assign(steps.begin(), steps.end());
  compare_ranks(records, result);
  if (other != nullptr) compare_runs(records, *other, result);
  judge_ends(records, result);
  return result;
}

bool is_in_lockstep(const Audit& audit, bool so_far) {
  const bool has_compared = audit.world_size == 1 || audit.num_states > 0 ||
                            audit.num_states_of_others > 0 || audit.num_collectives > 0;
  return audit.outcome.kind == OutcomeKind::kEqual && has_compared &&
         (so_far || (audit.without_record.empty() && audit.without_end.empty()));
}

}  // namespace lockstep::harness
