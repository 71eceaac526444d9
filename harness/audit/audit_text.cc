// SPDX-License-Identifier: Apache-2.0
// What an audit came to, for people.
#include <fmt/format.h>

#include "harness/audit/audit.h"
#include "harness/report/printable.h"
#include "harness/report/text_standing.h"

namespace lockstep::harness {
namespace {

std::string counted(std::int64_t number, const char* noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

std::string difference_text(const StateDifference& difference) {
  std::string out = fmt::format("{} of step {}, first in {} ({} of {})\n", difference.what,
                                difference.step, difference.tensor, difference.num_differ,
                                counted(difference.num_tensors, "tensor"));
  return printable(out);
}

std::string before_text(const StateDifference& difference) {
  return difference.alike_before.empty()
             ? "    it is the first that was recorded\n"
             : fmt::format("    alike until then: {}\n", printable(difference.alike_before));
}

const char* word_of(const Audit& audit, bool so_far) {
  return audit.outcome.kind == OutcomeKind::kEqual && !is_in_lockstep(audit, so_far)
             ? "unfinished"
             : to_string(audit.outcome.kind);
}

}  // namespace

std::string describe(const Audit& audit, const std::string& folder, bool so_far) {
  std::string out = fmt::format(
      "{}: {}, {}{}, {} compared, {}\n  outcome: {}\n", printable(folder),
      counted(audit.world_size, "rank"),
      counted(static_cast<std::int64_t>(audit.steps.size()), "step"),
      audit.steps.empty() ? "" : fmt::format(" ({}-{})", audit.steps.front(), audit.steps.back()),
      counted(audit.num_states, "state"), counted(audit.num_collectives, "collective"),
      word_of(audit, so_far));
  if (audit.num_states_of_other > 0) {
    out += fmt::format("  compared with the other run: {}\n",
                       counted(audit.num_states_of_other, "state"));
  }
  if (audit.difference) {
    out += "  ranks differ: " + difference_text(*audit.difference);
    for (const auto& [ranks, content] : audit.difference->held) {
      out += fmt::format("    {}: {}\n", rank_list(ranks), printable(content));
    }
    out += before_text(*audit.difference);
  }
  if (audit.from_other_run) {
    const auto& held = audit.from_other_run->held;
    out += "  not as in the other run: " + difference_text(*audit.from_other_run);
    out +=
        fmt::format("    here, {}: {}\n    there, {}: {}\n", rank_list(held[0].first),
                    printable(held[0].second), rank_list(held[1].first), printable(held[1].second));
    out += before_text(*audit.from_other_run);
  }
  out += describe_standing(audit.outcome);
  if (!audit.without_record.empty()) {
    out += fmt::format("  without a record: {}\n", rank_list(audit.without_record));
  }
  if (!audit.without_end.empty() && !so_far) {
    out += fmt::format("  without an end: {}; if the run goes on: --so-far\n",
                       rank_list(audit.without_end));
  }
  return out;
}

}  // namespace lockstep::harness
