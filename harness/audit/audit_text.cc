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
  return fmt::format("{} of step {}, first in {} ({} of {})\n", difference.what, difference.step,
                     difference.tensor, difference.num_differ,
                     counted(difference.num_tensors, "tensor"));
}

std::string before_text(const StateDifference& difference) {
  return difference.alike_before.empty()
             ? "    it is the first that was compared\n"
             : fmt::format("    alike until then: {}\n", difference.alike_before);
}

std::string word_of(const Audit& audit, bool so_far) {
  if (audit.outcome.kind != OutcomeKind::kEqual) return to_string(audit.outcome.kind);
  if (!is_in_lockstep(audit, true)) return "nothing was compared";
  const bool is_complete = audit.without_record.empty() && audit.without_end.empty();
  return is_complete ? to_string(audit.outcome.kind) : so_far ? "alike so far" : "unfinished";
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
  if (audit.num_states_of_others > 0) {
    out += fmt::format("  compared with the other run: {}\n",
                       counted(audit.num_states_of_others, "state"));
  }
  if (audit.difference) {
    out += "  ranks differ: " + difference_text(*audit.difference);
    for (const HeldBy& by : audit.difference->held) {
      out += fmt::format("    {}: {}\n", rank_list(by.ranks), by.content);
    }
    out += before_text(*audit.difference);
  }
  if (audit.from_other_run) {
    const auto& held = audit.from_other_run->held;
    out += "  not as in the other run: " + difference_text(*audit.from_other_run);
    out += fmt::format("    here, {}: {}\n    there, {}: {}\n", rank_list(held[0].ranks),
                       held[0].content, rank_list(held[1].ranks), held[1].content);
    out += before_text(*audit.from_other_run);
  }
  out += describe_standing(audit.outcome);
  for (const std::string& note : audit.notes) out += fmt::format("  note: {}\n", note);
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
