// SPDX-License-Identifier: Apache-2.0
// The wait-for graph as text and picture, and reasons in plain words.
#include "harness/judge/wait_for.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/check.h"

namespace lockstep::harness {
namespace {

std::string collective_text(const WaitingIn& waiting) {
  std::string text = waiting.collective;
  if (!waiting.site.empty()) {
    text += waiting.bucket >= 0 ? fmt::format(" of {} {}", waiting.site, waiting.bucket)
                                : fmt::format(" of {}", waiting.site);
  }
  if (waiting.step >= 0) {
    text += fmt::format(" in step {}", waiting.step);
  }
  return fmt::format("{} (collective {})", text, waiting.seq);
}

std::string ranks_text(const std::vector<std::int64_t>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string state_text(const RankState& state) {
  switch (state.ending) {
    case Ending::kWaiting:
      return state.waiting
                 ? fmt::format("waits in {} for {}", collective_text(*state.waiting),
                               ranks_text(state.waiting->waiting_for))
                 : fmt::format("stands still in {} of step {}", state.at_phase, state.at_step);
    case Ending::kFailed:
      return fmt::format("failed in {} of step {}: {}: {}", state.at_phase, state.at_step,
                         state.error_kind, state.error_message);
    case Ending::kLeft:
      return fmt::format("left the training loop in step {}", state.at_step);
    case Ending::kCrashed:
      return state.signal != 0
                 ? fmt::format("was ended by signal {} in step {}", state.signal, state.at_step)
                 : fmt::format("ended its process in step {}: {}", state.at_step,
                               state.error_message);
    case Ending::kFinished:
      return "finished all its steps";
  }
  throw InvariantError("unknown ending");
}

std::string parameters_text(const RankState& state) {
  std::vector<std::string> names;
  for (const NeverReady& entry : state.never_ready) {
    names.push_back(entry.parameter);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
    }
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

std::string deadlock_reason(const Outcome& outcome) {
  std::string reason;
  for (const RankState& state : outcome.ranks) {
    if (state.waiting) {
      reason = fmt::format("rank {} {}", state.rank, state_text(state));
      break;
    }
  }
  for (const RankState& state : outcome.ranks) {
    if (!state.waiting) {
      reason += fmt::format("; rank {} {}", state.rank, state_text(state));
      break;
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
  for (const RankState& state : ranks) {
    text += fmt::format("rank {} {}\n", state.rank, state_text(state));
    for (const NeverReady& entry : state.never_ready) {
      text += fmt::format("  never ready: {} (bucket {}): {}\n", entry.parameter, entry.bucket,
                          entry.why);
    }
  }
  return text;
}

std::string wait_for_dot(const std::vector<RankState>& ranks) {
  std::string text = "digraph wait_for {\n  rankdir=LR;\n  node [shape=box];\n";
  for (const RankState& state : ranks) {
    text += fmt::format("  r{} [label=\"rank {}\\n{}\"];\n", state.rank, state.rank,
                        escaped(state_text(state)));
    if (state.waiting) {
      for (const std::int64_t other : state.waiting->waiting_for) {
        text += fmt::format("  r{} -> r{} [label=\"{} {}\"];\n", state.rank, other,
                            state.waiting->collective, state.waiting->seq);
      }
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
      return fmt::format("rank {} {}", state.rank, state_text(state));
    }
  }
  return "";
}

}  // namespace lockstep::harness
