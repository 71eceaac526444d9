// SPDX-License-Identifier: Apache-2.0
// One case in full, for people.
#include "harness/report/text_case.h"

#include <fmt/format.h>

#include "harness/report/printable.h"
#include "harness/report/report.h"
#include "harness/report/standing.h"
#include "harness/report/text_standing.h"
#include "harness/report/text_style.h"

namespace lockstep::harness {

namespace {

std::string divergence_text(const Divergence& d) {
  const std::string when = d.step < 0 ? "after construction" : fmt::format("in step {}", d.step);
  std::string out =
      fmt::format("  first divergence: {}, phase {}, {}, {}, seen by the oracle '{}'\n", when,
                  d.phase, d.tensor, rank_list(d.ranks), d.oracle);
  const std::string where = d.element >= 0 ? fmt::format("element {}: ", d.element) : "";
  out += fmt::format("    {}expected {}, got {}", where, d.expected, d.actual);
  if (!d.expected_bits.empty() || !d.actual_bits.empty()) {
    out += fmt::format(" (bits {}, got {})", d.expected_bits, d.actual_bits);
  }
  out += d.ulp >= 0 ? fmt::format(", {} ULP apart\n", d.ulp) : "\n";
  if (d.num_elements_differ > 0) {
    out += fmt::format("    elements of the tensor that differ: {}\n", d.num_elements_differ);
  }
  for (const CauseHypothesis& cause : d.causes) {
    out += fmt::format("    fits {}: {}: {}\n", cause.exact ? "every bit" : "up to rounding",
                       cause.name, indented(cause.description, "      "));
  }
  if (d.causes.empty()) out += "    no known cause fits the numbers\n";
  return out;
}

std::string outcome_line(const CaseResult& result) {
  const Outcome& outcome = result.outcome;
  std::string out =
      fmt::format("  outcome: {} (backend {}", to_string(outcome.kind), result.backend);
  for (std::size_t i = 0; i < outcome.oracles.size(); ++i) {
    out += (i == 0 ? "; oracles " : ", ") + outcome.oracles[i];
  }
  if (result.schedules) out += "; " + schedules_text(*result.schedules);
  out += ")\n";
  if (!outcome.reason.empty()) out += fmt::format("    {}\n", indented(outcome.reason, "    "));
  if (outcome.worst) {
    const Distance& worst = *outcome.worst;
    out +=
        fmt::format("    distance from the serial reference: {:.6g}, derived bound {:.6g} ({}{})\n",
                    worst.observed, worst.bound, moment(worst.step, ""),
                    worst.tensor.empty() ? "" : ", " + worst.tensor);
  }
  return out;
}

}  // namespace

std::string schedules_text(const ScheduleCount& count) {
  std::string out = count.all ? fmt::format("{0} of {0} schedules, exhaustive", count.num_schedules)
                              : fmt::format("{} schedules", count.num_schedules);
  if (count.num_orders) {
    out += fmt::format(" (for {:.6g} without reduction)", *count.num_orders);
  }
  if (count.num_different > 0) {
    out += fmt::format(", {} of them ended otherwise than the first", count.num_different);
  }
  return out;
}

std::string case_label(const std::string& file, const std::string& name) {
  return printable(name.empty() ? file : fmt::format("{} [{}]", file, name));
}

std::string replay_command(const CaseResult& result, const std::string& replay_options) {
  if (result.outcome.kind == OutcomeKind::kPredicted) {
    return "lockstep simulate " + shell_word(result.file);
  }
  std::string out = "lockstep replay " + shell_word(result.file);
  if (!result.name.empty()) out += " --case " + shell_word(result.name);
  if (!result.of_one_schedule || result.schedule.empty()) return out + replay_options;
  out += replay_options.substr(0, replay_options.find(" --schedule "));
  return out + " --schedule " + shell_word("replay:" + result.schedule);
}

std::string describe_case(const CaseResult& result, const CaseTextOptions& options) {
  const std::string head = verdict_mark(verdict_of(result), options.colour) +
                           emphasised(case_label(result.file, result.name), options.colour) + '\n';
  std::string body;
  if (!result.title.empty()) body += fmt::format("  {}\n", indented(result.title, "  "));
  if (!result.internal_error.empty()) {
    body +=
        fmt::format("  a defect of Lockstep itself: {}\n", indented(result.internal_error, "    "));
  }
  if (result.skipped) {
    body += fmt::format("  not run: the case cannot be judged on backend {}\n", result.backend);
    return head + printable(body);
  }
  if (result.internal_error.empty()) body += outcome_line(result);
  for (const std::string& complaint : result.complaints) {
    body += fmt::format("  not as expected: {}\n", indented(complaint, "    "));
  }
  for (const BrokenProperty& property : result.broken_properties) {
    body += fmt::format("  property {} does not hold: {}\n", property.name,
                        indented(property.difference, "    "));
  }
  if (result.equals_simulator.has_value()) {
    body += fmt::format("  final parameters, bit for bit: {} the simulator's\n",
                        *result.equals_simulator ? "equal to" : "DIFFERENT from");
  }
  if (result.peer && !result.peer->reason.empty()) {
    body += fmt::format("  {} is known to differ: {}\n", result.peer->sync,
                        indented(result.peer->reason, "    "));
    for (const std::string& difference : result.peer->differences) {
      body += fmt::format("    {}\n", indented(difference, "      "));
    }
  }
  body += describe_steps(result.steps, options.every_step);
  if (result.internal_error.empty() && result.outcome.kind != OutcomeKind::kPredicted) {
    if (result.outcome.divergence) body += divergence_text(*result.outcome.divergence);
    body += describe_standing(result.outcome);
    body += fmt::format("  rank 0 issued {} bucket all-reduces and rebuilt its buckets {} times",
                        result.bucket_all_reduces, result.rebuilds);
    if (result.trace_hash != 0) body += fmt::format("; trace {:016x}", result.trace_hash);
    body += '\n';
  }
  if (options.command) {
    body += fmt::format("  again: {}\n", replay_command(result, options.replay_options));
  }
  return head + printable(body);
}

}  // namespace lockstep::harness
