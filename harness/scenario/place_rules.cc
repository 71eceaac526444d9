// SPDX-License-Identifier: Apache-2.0
// Contradictions in the places of [[at]] and [[fault]]: collectives, virtual time, agreement.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "harness/fault_kinds.h"
#include "harness/model.h"
#include "harness/scenario/rules.h"

namespace lockstep::harness {

namespace {

template <std::size_t N>
bool is_one_of(const std::string& name, const char* const (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Ranks read from some collectives what they do next; one that is made up would have them do
// anything.
void check_makes_up(const FaultSpec& fault, const std::string& site, const std::string& path,
                    std::vector<CaseFinding>& findings) {
  static constexpr const char* kData[] = {"bucket",    "used_map", "buffers",
                                          "parameter", "barrier",  "script"};
  const bool makes_up = fault.kind == "skip_wait" || fault.kind == "skip_collective" ||
                        fault.kind == "corrupt_payload";
  if (makes_up && !is_one_of(site, kData)) {
    findings.push_back(
        {{path + ".site"},
         fmt::format("fault \"{}\" would make up what ranks decide by at site \"{}\"; expected one "
                     "of bucket, used_map, buffers, parameter, barrier and script, or the fault "
                     "\"transport_error\"",
                     fault.kind, site)});
  }
  static constexpr const char* kOfData[] = {"wrong_numel", "wrong_dtype", "corrupt_payload"};
  if (site == "barrier" && is_one_of(fault.kind, kOfData)) {
    findings.push_back({{path + ".site"},
                        fmt::format("fault \"{}\" changes data, and a barrier carries none; "
                                    "expected another site",
                                    fault.kind)});
  }
}

// The collectives of construction come before step 0, unless a reload constructs again.
void check_site_and_steps(const Case& value, const std::string& site,
                          const std::vector<std::int64_t>& steps, const std::string& path,
                          std::vector<CaseFinding>& findings) {
  static constexpr const char* kConstruction[] = {"param_count", "param_shapes", "module_states"};
  if (!steps.empty() && is_one_of(site, kConstruction)) {
    findings.push_back({{path + ".step", path + ".site"},
                        fmt::format("site \"{}\" belongs to construction, which is in no step; "
                                    "leave 'step' out",
                                    site)});
  }
  if (site == "used_map" && reduces_in_backward(value.ddp) && !value.ddp.find_unused_parameters) {
    findings.push_back({{path + ".site", "ddp.find_unused_parameters"},
                        "nothing is issued for site \"used_map\" without "
                        "ddp.find_unused_parameters; set it, or name another site"});
  }
}

void check_time(const Case& value, std::int64_t from_ms, const std::string& path,
                std::vector<CaseFinding>& findings) {
  if (from_ms > 0 && !value.world.simulator_only) {
    findings.push_back({{path + ".from_ms", "world.simulator_only"},
                        "real time passes otherwise in every run; expected world.simulator_only = "
                        "true, or a step in the place of from_ms"});
  }
}

}  // namespace

bool holds_for_whole_step(const AtSpec& at) {
  return at.is_routing() || at.detach || at.reload || at.bypass || at.keep_gradients ||
         at.ascend > 0.0;
}

void check_place(const Case& value, const AtSpec& at, const std::string& path,
                 std::vector<CaseFinding>& findings) {
  const AtSpec defaults;
  check_time(value, at.from_ms, path, findings);
  if (holds_for_whole_step(at) && at.from_ms > 0) {
    findings.push_back({{path + ".from_ms"},
                        "what holds for a whole forward or step is no matter of time; leave "
                        "'from_ms' out"});
  }
  if (at.retry && at.raise.empty()) {
    findings.push_back({{path + ".retry"},
                        "retry says that what is thrown is caught, and nothing is; expected raise "
                        "= \"...\""});
  }
  if (at.site.empty()) {
    if (at.bucket) {
      findings.push_back({{path + ".bucket"},
                          "bucket says which collective of a site; expected site = \"bucket\""});
    }
    return;
  }
  check_site_and_steps(value, at.site, at.steps, path, findings);
  if (at.when != defaults.when || at.micro_batch) {
    findings.push_back({{path + (at.micro_batch ? ".micro_batch" : ".when"), path + ".site"},
                        "a collective is a place of its own; leave 'when' and 'micro_batch' out, "
                        "or 'site'"});
  }
  if (at.raise.empty() && !at.stall && at.sleep_ms == 0 && at.collective.empty()) {
    findings.push_back({{path + ".site"},
                        "before a collective a rank can raise, stall, sleep_ms or issue another "
                        "collective; leave 'site' out for anything else"});
  }
  if (!at.collective.empty() && (at.site == "script" || at.site == "barrier")) {
    findings.push_back({{path + ".site"},
                        "a scripted collective before every scripted one never comes to an end; "
                        "expected another site"});
  }
}

void check_place(const Case& value, const FaultSpec& fault, const std::string& path,
                 std::vector<CaseFinding>& findings) {
  check_time(value, fault.from_ms, path, findings);
  const bool ends = is_process_fault(fault.kind);
  const std::string site = site_of(fault);
  if (!is_collective_fault(fault.kind) && !ends && (!fault.site.empty() || fault.bucket)) {
    findings.push_back({{path + (fault.bucket ? ".bucket" : ".site")},
                        fmt::format("fault \"{}\" does not happen to a collective; leave 'site' "
                                    "and 'bucket' out",
                                    fault.kind)});
  } else if (site.empty() && fault.bucket) {
    findings.push_back(
        {{path + ".bucket"}, "bucket says which collective of a site; expected site = \"bucket\""});
  }
  if (site.empty() && fault.from_ms > 0) {
    findings.push_back({{path + ".from_ms"},
                        fmt::format("fault \"{}\" is not found by time here; leave 'from_ms' out{}",
                                    fault.kind, ends ? ", or name a site" : "")});
  }
  if ((fault.kind == "slow_link") != (fault.delay_ms > 0)) {
    findings.push_back({{path + ".delay_ms", path + ".kind"},
                        "delay_ms says how much later a collective completes over a slow link; "
                        "expected it above 0 with kind = \"slow_link\", and with no other"});
  }
  check_makes_up(fault, site, path, findings);
  if (!site.empty()) {
    check_site_and_steps(value, site, fault.steps, path, findings);
  }
  const bool before_all = fault.steps == std::vector<std::int64_t>{0};
  if (before_all && (fault.kind == "stale_gradient" || fault.kind == "mixed_steps")) {
    findings.push_back({{path + ".step"},
                        fmt::format("fault \"{}\" takes something from the step before, and before "
                                    "step 0 there is none; expected a later step",
                                    fault.kind)});
  }
}

void check_agreement(const Case& value, std::vector<CaseFinding>& findings) {
  if (value.train.agree != "never" && value.ddp.join != "off") {
    findings.push_back({{"train.agree", "ddp.join"},
                        "ranks that have joined take no part in scripted collectives, so the "
                        "others would wait for them; leave train.agree or ddp.join out"});
  }
}

}  // namespace lockstep::harness
