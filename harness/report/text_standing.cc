// SPDX-License-Identifier: Apache-2.0
// How a run ended badly, for people.
#include "harness/report/text_standing.h"

#include <fmt/ranges.h>

#include "harness/report/printable.h"
#include "harness/report/standing.h"

namespace lockstep::harness {
namespace {

/// Parameters that share bucket, step and reason share a line.
std::string never_ready_text(const std::vector<NeverReady>& entries, const std::string& indent) {
  std::string out;
  for (std::size_t i = 0; i < entries.size();) {
    std::string names;
    const NeverReady& first = entries[i];
    for (; i < entries.size() && entries[i].bucket == first.bucket &&
           entries[i].step == first.step && entries[i].why == first.why;
         ++i) {
      names += (names.empty() ? "" : ", ") + entries[i].parameter;
    }
    out += fmt::format("{}never ready: {}", indent, indented(names, indent));
    if (first.bucket >= 0) {
      out += fmt::format(" (bucket {}{})", first.bucket,
                         first.step >= 0 ? fmt::format(", step {}", first.step) : "");
    }
    if (!first.why.empty()) out += fmt::format(": {}", indented(first.why, indent));
    out += '\n';
  }
  return out;
}

std::string ranks_text(const std::vector<RankState>& ranks) {
  std::string out = "  how the ranks stand:\n";
  for (const AlikeRanks& group : alike_ranks(ranks)) {
    const RankState& state = *group.first;
    out += fmt::format("    {}: {}\n", rank_list(group.ranks),
                       indented(standing_text(state, group.ranks.size() > 1), "      "));
    for (const std::string& action : state.alone) {
      out += fmt::format("      alone: {}\n", indented(action, "      "));
    }
    out += never_ready_text(state.never_ready, "      ");
  }
  return out;
}

std::string stuck_text(const StuckCollective& stuck) {
  std::string out =
      fmt::format("  missing from {}, in which {} wait{}:\n", collective_text(stuck.collective),
                  rank_list(stuck.waiting), stuck.waiting.size() == 1 ? "s" : "");
  for (std::size_t i = 0; i < stuck.absent.size();) {
    const std::string& instead = stuck.absent[i].instead;
    std::vector<std::int64_t> alike;
    for (; i < stuck.absent.size() && stuck.absent[i].instead == instead; ++i) {
      alike.push_back(stuck.absent[i].rank);
    }
    out += fmt::format("    {}: {}\n", rank_list(alike), indented(instead, "      "));
  }
  return out;
}

std::string pairing_text(const WrongPairing& pairing) {
  std::string out =
      fmt::format("  first wrong pairing, in seq {}{}:\n", pairing.seq,
                  pairing.is_mixed ? " (the data fitted, and were mixed in silence)" : "");
  for (const IssuedBy& by : pairing.issued) {
    out += fmt::format("    {} issued {}\n", rank_list(by.ranks), collective_text(by.collective));
  }
  if (!pairing.nothing.empty()) {
    out += fmt::format("    {} issued nothing\n", rank_list(pairing.nothing));
  }
  return out;
}

/// What the transport said, where it is not what the sequences show anyway.
std::string mismatch_text(const MismatchInfo& m) {
  return fmt::format(
      "  mismatch in collective seq {}:\n    rank {} issued {}\n    rank {} issued {}\n", m.seq,
      m.first_rank, indented(m.first, "      "), m.second_rank, indented(m.second, "      "));
}

std::string cures_text(const Outcome& outcome) {
  std::string out;
  if (outcome.cure) {
    out += fmt::format("  cure, tried on the same schedule: {}\n    {}\n", outcome.cure->name,
                       indented(outcome.cure->description, "    "));
  }
  std::vector<std::string> in_vain, others;
  for (const TriedCure& tried : outcome.cures_tried) {
    if (!tried.proven) {
      in_vain.push_back(fmt::format("{} ({})", tried.name, tried.instead));
    } else if (!outcome.cure || tried.name != outcome.cure->name) {
      others.push_back(tried.name);
    }
  }
  if (!others.empty()) out += fmt::format("  also a cure: {}\n", fmt::join(others, ", "));
  if (!in_vain.empty()) {
    out += indented(fmt::format("  tried in vain: {}", fmt::join(in_vain, ", ")), "    ") + "\n";
  }
  return out;
}

}  // namespace

std::string describe_standing(const Outcome& outcome) {
  std::string out;
  if (!outcome.ranks.empty()) out += ranks_text(outcome.ranks);
  for (const StuckCollective& stuck : outcome.stuck) out += stuck_text(stuck);
  if (outcome.wrong_pairing) out += pairing_text(*outcome.wrong_pairing);
  if (outcome.mismatch &&
      !(outcome.wrong_pairing && outcome.wrong_pairing->seq == outcome.mismatch->seq)) {
    out += mismatch_text(*outcome.mismatch);
  }
  for (const CauseHypothesis& diagnosis : outcome.diagnoses) {
    out += fmt::format("  how it came to this: {}: {}\n", diagnosis.name,
                       indented(diagnosis.description, "    "));
  }
  return out + cures_text(outcome);
}

}  // namespace lockstep::harness
