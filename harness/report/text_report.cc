// SPDX-License-Identifier: Apache-2.0
// The report for people: a line per file or case, failures in full, the counts.
#include "harness/report/text_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "harness/report/printable.h"
#include "harness/report/text_case.h"
#include "harness/report/text_style.h"

namespace lockstep::harness {

namespace {

/// "3 diverged, 1 deadlock": the kinds that occurred, in their fixed order.
std::string kinds_text(const std::array<std::int64_t, kNumOutcomeKinds>& by_kind) {
  std::string out;
  for (std::size_t i = 0; i < by_kind.size(); ++i) {
    if (by_kind[i] == 0) continue;
    if (!out.empty()) out += ", ";
    out += fmt::format("{} {}", by_kind[i], to_string(static_cast<OutcomeKind>(i)));
  }
  return out;
}

std::string count_of_cases(std::int64_t count) {
  return count == 1 ? "1 case" : fmt::format("{} cases", count);
}

class TextReport : public Report {
 public:
  TextReport(std::ostream& out, const TextReportOptions& options) : out_(out), options_(options) {}

  void begin(const SuiteInfo& info) override { info_ = info; }

  void case_done(const CaseResult& result) override {
    if (result.file != file_) end_file();
    file_ = result.file;
    tally(result, of_file_);
    const Verdict verdict = verdict_of(result);
    if (verdict == Verdict::kFailed || verdict == Verdict::kDefect) {
      out_ << describe_case(result, {options_.colour, false, info_.replay_options}) << std::flush;
    } else if (options_.verbose) {
      const std::string came_out = result.skipped ? "not run" : to_string(result.outcome.kind);
      out_ << verdict_mark(verdict, options_.colour) << case_label(result.file, result.name) << ": "
           << came_out << (result.schedules ? "; " + schedules_text(*result.schedules) : "")
           << fmt::format(" ({:.3f} s)\n", result.seconds) << std::flush;
    }
  }

  void end(const SuiteSummary& summary) override {
    end_file();
    out_ << '\n' << describe_summary(summary) << std::flush;
  }

 private:
  void end_file() {
    if (of_file_.num_done() == 0) return;
    const Verdict verdict = of_file_.defects > 0   ? Verdict::kDefect
                            : of_file_.failed > 0  ? Verdict::kFailed
                            : of_file_.passed == 0 ? Verdict::kSkipped
                                                   : Verdict::kPassed;
    std::string line = verdict_mark(verdict, options_.colour) + printable(file_) + ": " +
                       count_of_cases(of_file_.num_done());
    if (of_file_.failed > 0) line += fmt::format(", {} not as expected", of_file_.failed);
    if (of_file_.skipped > 0) line += fmt::format(", {} not run", of_file_.skipped);
    const std::string kinds = kinds_text(of_file_.by_kind);
    if (!kinds.empty()) line += ": " + kinds;
    out_ << line << '\n' << std::flush;
    of_file_ = SuiteSummary{};
  }

  std::ostream& out_;
  const TextReportOptions options_;
  SuiteInfo info_;
  std::string file_;
  SuiteSummary of_file_;
};

}  // namespace

std::string describe_summary(const SuiteSummary& summary) {
  std::string out;
  if (summary.signal != 0) {
    out += fmt::format("Ended early by {}: {} of {} done.\n", signal_name(summary.signal),
                       summary.num_done(), count_of_cases(summary.num_cases));
  } else if (summary.stopped_at_failure) {
    out += fmt::format("Stopped at the first failure: {} of {} done.\n", summary.num_done(),
                       count_of_cases(summary.num_cases));
  }
  const std::string kinds = kinds_text(summary.by_kind);
  if (!kinds.empty()) out += fmt::format("Outcomes: {}.\n", kinds);
  if (summary.defects > 0) {
    out += fmt::format("Defects of Lockstep itself: {}.\n", count_of_cases(summary.defects));
  }
  if (summary.compared_with_simulator > 0) {
    out +=
        fmt::format("Final parameters compared with the simulator's: {}, {} bit for bit equal.\n",
                    count_of_cases(summary.compared_with_simulator), summary.equal_to_simulator);
  }
  if (summary.compared_with_peer > 0) {
    const std::int64_t unexplained =
        summary.compared_with_peer - summary.equal_to_peer - summary.intended_differences;
    out += fmt::format(
        "Compared with PyTorch's reducer: {}, {} the same in every bit and collective, {} differ "
        "as intended, {} unexplained.\n",
        count_of_cases(summary.compared_with_peer), summary.equal_to_peer,
        summary.intended_differences, unexplained);
  }
  if (summary.searched > 0) {
    out += fmt::format("Schedules: {} in {}, exhaustive in {} of them.\n", summary.num_schedules,
                       count_of_cases(summary.searched), summary.exhausted);
  }
  const std::int64_t num_run = summary.passed + summary.failed;
  if (num_run > 0 && summary.seconds > 0) {
    const double rate = static_cast<double>(num_run) / summary.seconds;
    const auto cores = static_cast<double>(std::max<std::int64_t>(summary.cores, 1));
    out +=
        fmt::format("{} in {:.1f} s ({} at a time): {:.1f} cases/s, {:.1f} per second per core\n",
                    count_of_cases(num_run), summary.seconds, summary.jobs, rate, rate / cores);
  }
  return out + fmt::format("{} passed, {} failed, {} skipped\n", summary.passed, summary.failed,
                           summary.skipped);
}

std::unique_ptr<Report> make_text_report(std::ostream& out, const TextReportOptions& options) {
  return std::make_unique<TextReport>(out, options);
}

}  // namespace lockstep::harness
