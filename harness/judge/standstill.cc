// SPDX-License-Identifier: Apache-2.0
// Reads what led to a bad end from what each rank issued and where it stands.
#include "harness/judge/standstill.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "harness/program.h"
#include "harness/report/printable.h"
#include "harness/report/standing.h"

namespace lockstep::harness {
namespace {

std::string steps_text(std::size_t count) {
  return count == 1 ? "1 step" : fmt::format("{} steps", count);
}

// What a rank did in the place of joining a collective.
std::string instead_of_joining(const RankRun& rank) {
  std::string text;
  switch (rank.ending) {
    case Ending::kFinished:
      text = fmt::format("finished after {}", steps_text(rank.steps.size()));
      break;
    case Ending::kLeft:
      text = fmt::format("left the training loop in step {}", rank.at_step);
      break;
    case Ending::kFailed:
      text =
          fmt::format("failed ({}) with {}", moment(rank.at_step, rank.at_phase), rank.error_kind);
      break;
    case Ending::kCrashed:
      text = fmt::format("{} ({})",
                         rank.signal != 0 ? "was ended by " + signal_name(rank.signal)
                                          : std::string("ended its process"),
                         moment(rank.at_step, ""));
      break;
    case Ending::kWaiting:
      text = rank.waiting ? "waits in " + collective_text(*rank.waiting)
                          : fmt::format("is still busy outside any collective ({})",
                                        moment(rank.at_step, rank.at_phase));
      break;
  }
  if (rank.collectives.empty()) {
    // The records of a process that died went with it.
    return text + (rank.ending == Ending::kCrashed ? "" : "; it issued no collective at all");
  }
  if (!rank.waiting) {
    text += "; the last that it issued was " +
            collective_text(rank.collectives.back(),
                            static_cast<std::int64_t>(rank.collectives.size()) - 1);
  }
  return text;
}

// Phases in which a rank is past a script's moment, in order.
int reached(const std::string& phase) {
  static const std::map<std::string, int> kReached = {{"construction", 0}, {"zero_grad", 0},
                                                      {"forward", 1},      {"backward", 2},
                                                      {"sync", 3},         {"update", 4}};
  const auto found = kReached.find(phase);
  return found != kReached.end() ? found->second : 5;
}

int needed(const AtSpec& at) {
  if (at.is_routing() || at.skip_step || at.detach || at.reload) {
    return 0;
  }
  return at.when == "before_forward"   ? 1
         : at.when == "after_forward"  ? 2
         : at.when == "after_backward" ? 4
                                       : 5;
}

std::string action_text(const AtSpec& at) {
  const auto list = [](const std::vector<std::string>& names) {
    return fmt::format("{}", fmt::join(names, ", "));
  };
  if (!at.skip.empty()) return "left out " + list(at.skip);
  if (!at.exit_after.empty()) return "ended its forward after " + at.exit_after;
  if (!at.freeze.empty()) return "froze " + list(at.freeze);
  if (!at.unfreeze.empty()) return "unfroze " + list(at.unfreeze);
  if (at.lr) return fmt::format("set its learning rate to {}", *at.lr);
  if (at.skip_step) return "skipped everything";
  if (at.detach) return "had a loss that depends on no parameter";
  if (at.sleep_ms > 0) return fmt::format("paused for {} ms", at.sleep_ms);
  if (!at.collective.empty()) return fmt::format("issued {} of its own", at.collective);
  if (at.evaluate > 0) {
    return fmt::format("evaluated through the {}",
                       at.evaluate_through == "module" ? "inner module" : "wrapper");
  }
  return at.reload ? "saved and loaded" : "";
}

// The steps up to where the rank came in which it did something that others did not.
std::vector<std::int64_t> steps_alone(const Case& value, const AtSpec& at, const RankRun& rank) {
  std::vector<std::int64_t> steps;
  const bool is_done = rank.ending == Ending::kFinished;
  const std::int64_t last = is_done ? value.train.steps - 1 : rank.at_step;
  for (std::int64_t step = 0; step <= last; ++step) {
    const bool came = is_done || step < last || reached(rank.at_phase) >= needed(at);
    if (covers(at.steps, step) && came && !all_ranks_do(value, at, step)) {
      steps.push_back(step);
    }
  }
  return steps;
}

std::string in_steps(const std::vector<std::int64_t>& steps) {
  return fmt::format("in step{} {}", steps.size() == 1 ? "" : "s", fmt::join(steps, ", "));
}

// "vision.weight, vision.bias never became ready on rank 1 in step 2"
std::string unfinished_text(const RankState& state) {
  std::vector<std::string> names;
  for (const NeverReady& entry : state.never_ready) {
    names.push_back(entry.parameter);
  }
  return fmt::format("{} never became ready on rank {} in step {}", fmt::join(names, ", "),
                     state.rank, state.never_ready.front().step);
}

bool waits_for(const RankState& waits, const RankState& absent) {
  if (!waits.waiting) {
    return false;
  }
  const WaitingIn& waiting = *waits.waiting;
  return (waiting.site == "bucket" || waiting.site == "used_map") &&
         // A rank without any gradient notices nothing, and is past that step.
         waiting.step <= absent.never_ready.front().step &&
         std::find(waiting.waiting_for.begin(), waiting.waiting_for.end(), absent.rank) !=
             waiting.waiting_for.end();
}

std::optional<CauseHypothesis> unfinished_of(const Outcome& outcome, const RankState& state) {
  const std::string start = unfinished_text(state);
  const auto hung = std::find_if(outcome.ranks.begin(), outcome.ranks.end(),
                                 [&](const RankState& other) { return waits_for(other, state); });
  // With a static graph, fewer gradients than in the first iteration (K4); more are told in
  // backward.
  const bool noticed =
      state.ending == Ending::kFailed &&
      (state.error_kind == "reduction_unfinished" ||
       (state.error_kind == "static_graph_changed" && state.at_phase == "forward"));
  if (state.ending == Ending::kFailed && !noticed) {
    return std::nullopt;  // its error ended the backward, and says why
  }
  if (hung != outcome.ranks.end()) {
    return CauseHypothesis{
        "unfinished_hang",
        fmt::format("{}, so it never launched a bucket in which rank {} waits for ever; {}", start,
                    hung->rank,
                    noticed ? fmt::format("its own next forward, in step {}, failed for the same "
                                          "reason",
                                          state.at_step)
                            : "it had no other forward in which to notice"),
        true};
  }
  if (outcome.kind == OutcomeKind::kError && noticed) {
    const bool at_once = state.at_step == state.never_ready.front().step;
    return CauseHypothesis{
        "unfinished_error",
        fmt::format("{}; no rank waited for its buckets, so all went on with gradients that were "
                    "not reduced, until {}",
                    start,
                    at_once ? "checked mode noticed"
                            : fmt::format("the next forward, in step {}, noticed", state.at_step)),
        true};
  }
  if (outcome.kind == OutcomeKind::kDiverged) {
    return CauseHypothesis{
        "unfinished_drift",
        fmt::format("{}; no rank waited for its buckets and no other forward followed, so nobody "
                    "noticed: the ranks went on with gradients that were not reduced",
                    start),
        true};
  }
  return std::nullopt;
}

}  // namespace

bool same_collective(const CollectiveRecord& a, const CollectiveRecord& b) {
  const auto all = [](const CollectiveRecord& r) {
    return std::tie(r.collective, r.site, r.step, r.bucket, r.numel, r.dtype);
  };
  return all(a) == all(b);
}

std::vector<StuckCollective> stuck_collectives(const Run& run) {
  // Where ranks paired wrongly they wait in different collectives of one seq.
  std::map<std::pair<std::int64_t, std::string>, StuckCollective> by_collective;
  for (const RankRun& rank : run.ranks) {
    if (!rank.waiting) {
      continue;
    }
    StuckCollective& stuck = by_collective[{rank.waiting->seq, collective_text(*rank.waiting)}];
    stuck.collective = *rank.waiting;
    stuck.waiting.push_back(rank.rank);
  }
  std::vector<StuckCollective> result;
  for (auto& [collective, stuck] : by_collective) {
    for (const std::int64_t rank : stuck.collective.waiting_for) {
      stuck.absent.push_back({rank, instead_of_joining(run.ranks[static_cast<std::size_t>(rank)])});
    }
    result.push_back(std::move(stuck));
  }
  return result;
}

std::optional<WrongPairing> first_wrong_pairing(const Run& run) {
  std::size_t longest = 0;
  for (const RankRun& rank : run.ranks) {
    longest = std::max(longest, rank.collectives.size());
  }
  for (std::size_t seq = 0; seq < longest; ++seq) {
    WrongPairing pairing;
    pairing.seq = static_cast<std::int64_t>(seq);
    bool is_complete = true;
    for (const RankRun& rank : run.ranks) {
      if (seq >= rank.collectives.size()) {
        pairing.nothing.push_back(rank.rank);
        continue;
      }
      const CollectiveRecord& own = rank.collectives[seq];
      auto alike =
          std::find_if(pairing.issued.begin(), pairing.issued.end(),
                       [&](const IssuedBy& by) { return same_collective(by.collective, own); });
      if (alike == pairing.issued.end()) {
        alike = pairing.issued.insert(alike, {own, {}});
      }
      alike->ranks.push_back(rank.rank);
      is_complete = is_complete && !(rank.waiting && rank.waiting->seq <= pairing.seq);
    }
    if (pairing.issued.size() > 1) {
      const bool is_noticed =
          std::any_of(run.ranks.begin(), run.ranks.end(),
                      [](const RankRun& rank) { return rank.error_kind == "desync"; });
      pairing.is_mixed = is_complete && pairing.nothing.empty() && !is_noticed && !run.mismatch;
      return pairing;
    }
  }
  return std::nullopt;
}

std::vector<std::string> done_alone(const Case& value, const RankRun& rank) {
  std::vector<std::string> texts;
  for (const AtSpec& at : value.at) {
    const std::string action = action_text(at);
    if (action.empty() || !covers(at.ranks, rank.rank)) {
      continue;
    }
    const std::vector<std::int64_t> steps = steps_alone(value, at, rank);
    if (!steps.empty()) {
      texts.push_back(fmt::format("{} {}", action, in_steps(steps)));
    }
  }
  for (const FaultSpec& fault : value.faults) {
    const bool is_alone =
        !fault.ranks.empty() && static_cast<std::int64_t>(fault.ranks.size()) < value.world.ranks;
    const bool came = rank.ending == Ending::kFinished || fault.steps.empty() ||
                      *std::min_element(fault.steps.begin(), fault.steps.end()) <= rank.at_step;
    if (is_alone && covers(fault.ranks, rank.rank) && came) {
      texts.push_back(fmt::format("planted mistake {}{}", fault.kind,
                                  fault.steps.empty() ? "" : " " + in_steps(fault.steps)));
    }
  }
  return texts;
}

std::vector<CauseHypothesis> diagnoses_of(const Outcome& outcome) {
  std::vector<CauseHypothesis> diagnoses;
  for (const RankState& state : outcome.ranks) {
    if (state.never_ready.empty()) {
      continue;
    }
    if (auto diagnosis = unfinished_of(outcome, state)) {
      diagnoses.push_back(*std::move(diagnosis));
      break;  // the others' are the same
    }
  }
  if (outcome.wrong_pairing) {
    const WrongPairing& pairing = *outcome.wrong_pairing;
    diagnoses.push_back(
        {"wrong_pairing",
         fmt::format("the collectives of {} and {} differ from seq {} on{}",
                     rank_list(pairing.issued[0].ranks), rank_list(pairing.issued[1].ranks),
                     pairing.seq,
                     pairing.is_mixed ? "; their data fitted, so they were mixed in silence" : ""),
         true});
  }
  return diagnoses;
}

}  // namespace lockstep::harness
