// SPDX-License-Identifier: Apache-2.0
// A campaign in words.
#include "harness/fuzz/campaign/campaign_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "harness/report/printable.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {

namespace {

std::string kinds_text(const SuiteSummary& summary) {
  std::string out;
  for (std::size_t i = 0; i < summary.by_kind.size(); ++i) {
    if (summary.by_kind[i] == 0) continue;
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", summary.by_kind[i],
                       to_string(static_cast<OutcomeKind>(i)));
  }
  return out.empty() ? "none" : out;
}

}  // namespace

std::string describe_found(const Found& found, bool was_to_shrink) {
  std::string out;
  if (was_to_shrink && found.shrunk.num_judged > 0) {
    out += fmt::format("  shrunk in {} steps, {} cases judged{}\n", found.shrunk.num_steps,
                       found.shrunk.num_judged,
                       found.shrunk.is_minimal ? "" : "; ended early, so it may get smaller");
  }
  out += fmt::format("  {}:\n", found.path.empty() ? "not written" : printable(found.path));
  return out + print_case(found.shrunk.value);
}

std::string describe_campaign(const CampaignSummary& summary, const CampaignOptions& options,
                              const std::string& options_text) {
  std::string out;
  const SuiteSummary& cases = summary.cases;
  if (summary.signal != 0) out += fmt::format("Ended by {}.\n", signal_name(summary.signal));
  if (summary.replays.num_done() > 0) {
    out += fmt::format("Replayed: {}, {} as expected.\n", summary.replays.num_done(),
                       summary.replays.passed + summary.replays.skipped);
  }
  out += fmt::format("Cases: {}, {} valid, {} broken. Outcomes: {}.\n", cases.num_done(),
                     summary.num_valid, summary.num_broken, kinds_text(cases));
  if (cases.skipped > 0) out += fmt::format("Not judged on this backend: {}.\n", cases.skipped);
  std::string found;
  for (const auto& [kind, count] : summary.findings) {
    found += fmt::format("{}{} ({})", found.empty() ? "" : ", ", kind, count);
  }
  out += fmt::format("Found: {}.\n", found.empty() ? "nothing" : found);
  for (std::size_t i = 0; i < std::min<std::size_t>(3, summary.best.size()); ++i) {
    const Steering::Scored& best = summary.best[i];
    out += fmt::format("Best: {}, {}\n", score_text(*options.toward, best.score), best.name);
    if (i == 0) out += print_case(best.value) + "\n";
  }
  if (cases.num_done() > 0 && cases.seconds > 0) {
    const double rate = static_cast<double>(cases.num_done()) / cases.seconds;
    out += fmt::format("{} cases in {:.1f} s ({} at a time): {:.1f} cases/s, {:.1f} per core\n",
                       cases.num_done(), cases.seconds, cases.jobs, rate,
                       rate / static_cast<double>(std::max<std::int64_t>(1, cases.cores)));
  }
  return out + fmt::format("again: lockstep fuzz --seed {} --cases {}{}\n", options.seed,
                           summary.num_indices, options_text);
}

}  // namespace lockstep::harness::fuzz
