// SPDX-License-Identifier: Apache-2.0
// The wait-for graph as text and picture, and reasons in plain words.
#include "harness/judge/wait_for.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "harness/report/printable.h"
#include "harness/report/standing.h"

namespace lockstep::harness {
namespace {

std::string parameters_text(const RankState& state) {
  std::vector<std::string> names;
  for (const NeverReady& entry : state.never_ready) {
    names.push_back(entry.parameter);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// Long lines would make a node as wide as the picture.
constexpr std::size_t kLabelColumns = 60;

std::string label_text(const std::string& text) {
  std::string result;
  std::size_t column = 0;
  for (const char c : text) {
    if ((c == ' ' && column >= kLabelColumns) || c == '\n') {
      result += "\\n";
      column = 0;
      continue;
    }
    if (c == '"' || c == '\\') {
      result += '\\';
    }
    result += c;
    ++column;
  }
  return result;
}

std::string deadlock_reason(const Outcome& outcome) {
  std::string reason;
  const std::vector<AlikeRanks> groups = alike_ranks(outcome.ranks);
  for (const bool waits : {true, false}) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const AlikeRanks& ranks) {
      return ranks.first->waiting.has_value() == waits;
    });
    if (group != groups.end()) {
      reason += fmt::format("{}rank {} {}", reason.empty() ? "" : "; ", group->first->rank,
                            standing_text(*group->first));
    }
  }
  for (const RankState& state : outcome.ranks) {
    if (!state.never_ready.empty()) {
      reason +=
          fmt::format("; on rank {} {} never became ready", state.rank, parameters_text(state));
      break;
    }
  }
  return reason;
}

std::string divergence_reason(const Divergence& divergence) {
  std::string reason =
      fmt::format("{} {} differs from what oracle {} says, first in {} {}", divergence.phase,
                  divergence.tensor, divergence.oracle, divergence.step < 0 ? "the" : "step",
                  divergence.step < 0 ? "initial state" : std::to_string(divergence.step));
  if (!divergence.causes.empty()) {
    reason += "; " + divergence.causes.front().description;
  }
  return reason;
}

}  // namespace

std::string wait_for_text(const std::vector<RankState>& ranks) {
  std::string text;
  for (const AlikeRanks& group : alike_ranks(ranks)) {
    text += fmt::format("{}: {}\n", rank_list(group.ranks),
                        standing_text(*group.first, group.ranks.size() > 1));
    for (const NeverReady& entry : group.first->never_ready) {
      text += fmt::format("  never ready: {} (bucket {}): {}\n", entry.parameter, entry.bucket,
                          entry.why);
    }
  }
  return text;
}

std::string wait_for_dot(const std::vector<RankState>& ranks) {
  const std::vector<AlikeRanks> groups = alike_ranks(ranks);
  std::string text = "digraph wait_for {\n  rankdir=LR;\n  node [shape=box];\n";
  for (const AlikeRanks& group : groups) {
    const RankState& state = *group.first;
    text += fmt::format("  r{} [label=\"{}\\n{}\"{}];\n", state.rank, rank_list(group.ranks),
                        label_text(standing_text(state, group.ranks.size() > 1)),
                        state.waiting ? "" : ", style=rounded");
    if (!state.waiting) {
      continue;
    }
    std::set<std::int64_t> targets;
    for (const std::int64_t other : state.waiting->waiting_for) {
      const auto target = std::find_if(groups.begin(), groups.end(), [&](const AlikeRanks& each) {
        return std::find(each.ranks.begin(), each.ranks.end(), other) != each.ranks.end();
      });
      targets.insert(target == groups.end() ? other : target->first->rank);
    }
    for (const std::int64_t target : targets) {
      text += fmt::format("  r{} -> r{} [label=\"{} {}\"];\n", state.rank, target,
                          state.waiting->collective, state.waiting->seq);
    }
  }
  return text + "}\n";
}

std::string reason_of(const Outcome& outcome) {
  switch (outcome.kind) {
    case OutcomeKind::kEqual:
      return "every promised oracle holds bit for bit";
    case OutcomeKind::kWithinBound:
      return outcome.oracles.size() > 1
                 ? "bit-equal where bits were promised, and within the derived bound of the serial "
                   "reference"
                 : "within the derived bound of the serial reference";
    case OutcomeKind::kDiverged:
      return outcome.divergence ? divergence_reason(*outcome.divergence) : "";
    case OutcomeKind::kDeadlock:
      return deadlock_reason(outcome);
    case OutcomeKind::kError:
    case OutcomeKind::kCrash:
    case OutcomeKind::kPredicted:
      break;
  }
  for (const RankState& state : outcome.ranks) {
    if (state.ending == Ending::kFailed || state.ending == Ending::kCrashed) {
      return fmt::format("rank {} {}", state.rank, standing_text(state));
    }
  }
  return "";
}

}  // namespace lockstep::harness
