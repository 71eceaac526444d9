// SPDX-License-Identifier: Apache-2.0
// JSON lines of what a campaign has tried.
#include "harness/fuzz/campaign/journal.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "core/check.h"
#include "harness/fuzz/pairs/options.h"
#include "harness/fuzz/predict/predict.h"

namespace lockstep::harness::fuzz {

std::string journal_line(const Origin& origin, const Case& value, const CaseResult& result,
                         const std::string& finding) {
  using Json = nlohmann::ordered_json;
  Json line = Json::object();
  if (origin.index) {
    line["index"] = *origin.index;
    line["seed"] = origin.seed;
  } else {
    line["file"] = origin.file;
    if (!result.name.empty()) line["name"] = result.name;
  }
  line["mode"] = has_mistake(value) ? "broken" : "valid";
  line["outcome"] = result.skipped ? "skipped" : to_string(result.outcome.kind);
  line["finding"] = finding;
  line["seconds"] = result.seconds;
  const auto& divergence = result.outcome.divergence;
  line["ulp"] = divergence && divergence->ulp >= 0 ? Json(divergence->ulp) : Json();
  const auto& worst = result.outcome.worst;
  line["worst"] = worst && worst->bound > 0 ? Json(worst->observed / worst->bound) : Json();
  line["wait_ns"] = result.longest_wait_ns;
  line["options"] = option_names(value);
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Journal::Journal(const std::string& path) : path_(path) {
  if (path_.empty() || path_ == "-") return;
  file_.open(path_);
  LOCKSTEP_USAGE(file_.is_open(), "cannot write '{}' (--json-lines)", path_);
}

void Journal::add(const Origin& origin, const Case& value, const CaseResult& result,
                  const std::string& finding) {
  if (path_.empty()) return;
  std::ostream& out = path_ == "-" ? std::cout : file_;
  out << journal_line(origin, value, result, finding) << std::endl;
  LOCKSTEP_USAGE(out.good(), "cannot write '{}' (--json-lines): is the disk full?", path_);
}

}  // namespace lockstep::harness::fuzz
