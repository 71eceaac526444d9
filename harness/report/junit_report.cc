// SPDX-License-Identifier: Apache-2.0
// The report for continuous integration: JUnit XML.
#include "harness/report/junit_report.h"

#include <fmt/format.h>

#include <ostream>
#include <pugixml.hpp>

#include "harness/report/printable.h"
#include "harness/report/text_case.h"

namespace lockstep::harness {

namespace {

void set(pugi::xml_node node, const char* name, const std::string& value) {
  node.append_attribute(name).set_value(printable(value).c_str());
}

void set(pugi::xml_node node, const char* name, std::int64_t value) {
  node.append_attribute(name).set_value(static_cast<long long>(value));
}

void set_counts(pugi::xml_node node, const SuiteSummary& counts) {
  set(node, "tests", counts.num_done());
  set(node, "failures", counts.failed - counts.defects);
  set(node, "errors", counts.defects);
  set(node, "skipped", counts.skipped);
  set(node, "time", fmt::format("{:.6f}", counts.seconds));
}

/// One line that says what is wrong.
std::string headline(const CaseResult& result) {
  if (!result.internal_error.empty()) return result.internal_error;
  if (!result.complaints.empty()) return result.complaints.front();
  return fmt::format("outcome {}", to_string(result.outcome.kind));
}

class JunitReport : public Report {
 public:
  explicit JunitReport(std::ostream& out) : out_(out) {
    pugi::xml_node declaration = document_.append_child(pugi::node_declaration);
    set(declaration, "version", "1.0");
    set(declaration, "encoding", "UTF-8");
    root_ = document_.append_child("testsuites");
    set(root_, "name", "lockstep");
  }

  void begin(const SuiteInfo& info) override { info_ = info; }

  void case_done(const CaseResult& result) override {
    if (!suite_ || result.file != file_) {
      end_file();
      file_ = result.file;
      suite_ = root_.append_child("testsuite");
      set(suite_, "name", file_);
    }
    tally(result, of_file_);
    of_file_.seconds += result.seconds;

    pugi::xml_node node = suite_.append_child("testcase");
    set(node, "classname", result.file);
    set(node, "name", result.name.empty() ? result.title : result.name);
    set(node, "time", fmt::format("{:.6f}", result.seconds));
    const Verdict verdict = verdict_of(result);
    if (verdict == Verdict::kPassed) return;
    if (verdict == Verdict::kSkipped) {
      set(node.append_child("skipped"), "message", "cannot be judged on this backend");
      return;
    }
    const bool defect = verdict == Verdict::kDefect;
    pugi::xml_node problem = node.append_child(defect ? "error" : "failure");
    set(problem, "message", headline(result));
    set(problem, "type", defect ? "defect" : to_string(result.outcome.kind));
    const std::string text = describe_case(result, {false, false, info_.replay_options});
    problem.text().set(text.c_str());
  }

  void end(const SuiteSummary& summary) override {
    end_file();
    set_counts(root_, summary);
    document_.save(out_, "  ");
    out_ << std::flush;
  }

 private:
  void end_file() {
    if (suite_) set_counts(suite_, of_file_);
    of_file_ = SuiteSummary{};
  }

  std::ostream& out_;
  SuiteInfo info_;
  pugi::xml_document document_;
  pugi::xml_node root_, suite_;
  std::string file_;
  SuiteSummary of_file_;
};

}  // namespace

std::unique_ptr<Report> make_junit_report(std::ostream& out) {
  return std::make_unique<JunitReport>(out);
}

}  // namespace lockstep::harness
