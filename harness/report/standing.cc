// SPDX-License-Identifier: Apache-2.0
// Words for ranks and collectives.
#include "harness/report/standing.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/check.h"
#include "harness/report/printable.h"

namespace lockstep::harness {
namespace {

bool same(const std::vector<NeverReady>& a, const std::vector<NeverReady>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const NeverReady& x, const NeverReady& y) {
                      return x.parameter == y.parameter && x.bucket == y.bucket &&
                             x.step == y.step && x.why == y.why;
                    });
}

std::string message_of(const RankState& state) {
  const std::string own = fmt::format("rank {}, ", state.rank);
  return state.error_message.rfind(own, 0) == 0 ? state.error_message.substr(own.size())
                                                : state.error_message;
}

}  // namespace

std::string moment(std::int64_t step, const std::string& phase) {
  if (step < 0) return phase.empty() ? "before the first step" : phase;
  return phase.empty() ? fmt::format("step {}", step) : fmt::format("step {}, {}", step, phase);
}

std::string collective_text(const CollectiveRecord& record, std::int64_t seq) {
  std::string where = record.site;
  if (record.bucket >= 0) where += fmt::format(" {}", record.bucket);
  if (record.step >= 0) where += fmt::format(", step {}", record.step);
  std::string out = fmt::format("{} ({}{})", record.collective,
                                seq >= 0 ? fmt::format("seq {}; ", seq) : "", where);
  if (record.numel > 0) out += fmt::format(", {} x {}", record.numel, record.dtype);
  return out;
}

std::string collective_text(const WaitingIn& waiting) {
  return collective_text({waiting.collective, waiting.site, waiting.step, waiting.numel,
                          waiting.dtype, waiting.bucket},
                         waiting.seq);
}

std::string standing_text(const RankState& state, bool are_several) {
  const std::string at = moment(state.at_step, state.at_phase);
  switch (state.ending) {
    case Ending::kFinished:
      return "finished";
    case Ending::kLeft:
      return fmt::format("left the training loop ({})", moment(state.at_step, ""));
    case Ending::kFailed:
      return fmt::format("failed ({}) with {}: {}", at, state.error_kind, message_of(state));
    case Ending::kWaiting: {
      if (!state.waiting) {
        return fmt::format("{} still outside any collective ({}){}",
                           are_several ? "stand" : "stands", at,
                           state.error_kind.empty() ? "" : ": " + state.error_kind);
      }
      const auto& others = state.waiting->waiting_for;
      return fmt::format("{} in {}{}", are_several ? "wait" : "waits",
                         collective_text(*state.waiting),
                         others.empty() ? "" : ", for " + rank_list(others));
    }
    case Ending::kCrashed:
      return state.signal == 0 ? fmt::format("ended by itself ({}): {}", at, message_of(state))
                               : fmt::format("{} ended by {} ({})", are_several ? "were" : "was",
                                             signal_name(state.signal), at);
  }
  throw InvariantError("unknown ending");
}

std::vector<AlikeRanks> alike_ranks(const std::vector<RankState>& ranks) {
  std::vector<AlikeRanks> groups;
  std::vector<std::string> texts;
  for (const RankState& state : ranks) {
    const std::string text = standing_text(state);
    std::size_t at = 0;
    while (at < groups.size() &&
           !(texts[at] == text && same(groups[at].first->never_ready, state.never_ready) &&
             groups[at].first->alone == state.alone)) {
      ++at;
    }
    if (at == groups.size()) {
      groups.push_back({{}, &state});
      texts.push_back(text);
    }
    groups[at].ranks.push_back(state.rank);
  }
  return groups;
}

}  // namespace lockstep::harness
