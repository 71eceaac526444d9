// SPDX-License-Identifier: Apache-2.0
// The report for programs.
#include "harness/report/json_report.h"

#include <nlohmann/json.hpp>
#include <ostream>

#include "harness/report/case_json.h"

namespace lockstep::harness {

namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

class JsonReport : public Report {
 public:
  explicit JsonReport(std::ostream& out) : out_(out) {}

  void begin(const SuiteInfo& info) override {
    out_ << "{\"schema\":" << kJsonReportSchema << ",\"backend\":" << dump(info.backend)
         << ",\"cases\":[";
  }

  void case_done(const CaseResult& result) override {
    out_ << (first_ ? "\n" : ",\n") << case_result_to_json(result);
    first_ = false;
  }

  void end(const SuiteSummary& summary) override {
    Json kinds = Json::object();
    for (std::size_t i = 0; i < kNumOutcomeKinds; ++i) {
      kinds[to_string(static_cast<OutcomeKind>(i))] = summary.by_kind[i];
    }
    Json object = Json::object();
    object["num_cases"] = summary.num_cases;
    object["complete"] = summary.num_done() == summary.num_cases;
    object["signal"] = summary.signal;
    object["passed"] = summary.passed;
    object["failed"] = summary.failed;
    object["skipped"] = summary.skipped;
    object["defects"] = summary.defects;
    object["outcomes"] = kinds;
    object["compared_with_simulator"] = summary.compared_with_simulator;
    object["equal_to_simulator"] = summary.equal_to_simulator;
    object["compared_with_peer"] = summary.compared_with_peer;
    object["equal_to_peer"] = summary.equal_to_peer;
    object["intended_differences"] = summary.intended_differences;
    object["seconds"] = summary.seconds;
    out_ << "\n],\"summary\":" << dump(object) << "}\n" << std::flush;
  }

 private:
  std::ostream& out_;
  bool first_ = true;
};

}  // namespace

std::unique_ptr<Report> make_json_report(std::ostream& out) {
  return std::make_unique<JsonReport>(out);
}

}  // namespace lockstep::harness
