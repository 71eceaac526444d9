// SPDX-License-Identifier: Apache-2.0
// Contradictions in [[fault]], by the table of harness/fault_kinds.h.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "harness/fault_kinds.h"
#include "harness/model.h"
#include "harness/scenario/rules.h"

namespace lockstep::harness {

namespace {

// What has to be there, whether it is, and what to say where it is not.
struct Need {
  bool is_met = true;
  std::vector<std::string> keys;  ///< besides that of the fault's kind
  std::string text;
};

bool has_reload(const Case& value) {
  return std::any_of(value.at.begin(), value.at.end(), [](const AtSpec& at) { return at.reload; });
}

bool has_short_window(const Case& value) {
  return std::any_of(value.at.begin(), value.at.end(),
                     [](const AtSpec& at) { return at.micro_batches.has_value(); });
}

// A batch that an epoch has no room for is not used.
bool has_second_epoch(const Case& value) {
  const std::int64_t ranks = value.world.ranks;
  const std::int64_t per_rank =
      (value.data.samples + (value.data.drop_last ? 0 : ranks - 1)) / ranks;
  return value.train.steps > per_rank / value.train.batch_per_rank;
}

Need need_of(const Case& value, const FaultKind& kind, const KnownNames& names) {
  const std::string name = kind.name;
  const std::string& join = value.ddp.join;
  switch (kind.needs) {
    case FaultKind::Needs::kNothing:
      return {};
    case FaultKind::Needs::kReload:
      return {has_reload(value),
              {"at"},
              name + " needs something to load; expected an [[at]] with reload = true"};
    case FaultKind::Needs::kShortWindow:
      return {has_short_window(value),
              {"at"},
              name + " needs a shorter window; expected an [[at]] with micro_batches"};
    case FaultKind::Needs::kDropout:
      return {!names.model_is_sound || uses_dropout(value.model),
              {"model"},
              name + " needs a dropout in the model"};
    case FaultKind::Needs::kShuffle:
      return {value.data.shuffle, {"data.shuffle"}, name + " needs data.shuffle = true"};
    case FaultKind::Needs::kSecondEpoch:
      if (!value.data.shuffle) {
        return {false, {"data.shuffle"}, name + " needs data.shuffle = true"};
      }
      return {has_second_epoch(value),
              {"data.samples", "train.steps"},
              name +
                  " needs a second epoch, whose order would be another; expected fewer "
                  "data.samples, or more train.steps"};
    case FaultKind::Needs::kHook:
      return {value.ddp.sync == "ddp" && value.ddp.hook != "none",
              {"ddp.hook"},
              name + " needs a hook; expected ddp.hook, and ddp.sync = \"ddp\""};
    case FaultKind::Needs::kBuffers:
      return {!names.model_is_sound || !buffer_names(value.model).empty(),
              {"model"},
              name + " needs buffers, and the model has none; expected a batch_norm or a gain"};
    case FaultKind::Needs::kSyncBatchNorm:
      return {!names.model_is_sound || uses_sync_batch_norm(value.model),
              {"model"},
              name + " spoils a sync_batch_norm, and the model has none"};
    case FaultKind::Needs::kJoin:
      return {join != "off" && join != "throw",
              {"ddp.join"},
              fmt::format("join_divisor takes the other divisor than ddp.join says, which is "
                          "\"{}\"; expected \"divide_by_initial\" or \"divide_by_active\"",
                          join)};
    case FaultKind::Needs::kClipping:
      if (reduces_in_backward(value.ddp)) {
        return {false,
                {"ddp.sync"},
                fmt::format("clip_before_sync cannot happen with ddp.sync = \"{}\", which "
                            "synchronises inside backward; expected ddp.sync = \"per_parameter\" "
                            "or \"flat\"",
                            value.ddp.sync)};
      }
      return {value.train.clip_norm != 0.0,
              {},
              "clip_before_sync needs gradient clipping; expected train.clip_norm above 0"};
    case FaultKind::Needs::kMicroBatches:
      return {value.train.micro_batches > 1,
              {"train.micro_batches"},
              name + " needs at least two micro-batches; expected train.micro_batches above 1"};
    case FaultKind::Needs::kTimeout:
      return {value.world.timeout_ms != 0,
              {"world.timeout_ms"},
              "a process that is stopped is longer so than its peers wait, and these wait for "
              "ever; expected world.timeout_ms above 0"};
    case FaultKind::Needs::kSimulator:
      return {value.world.simulator_only,
              {"world.simulator_only"},
              "what comes of a forgotten wait is a matter of time on a real transport; expected "
              "world.simulator_only = true"};
  }
  return {};
}

void check_by(const FaultSpec& fault, const std::string& path, const KnownNames& names,
              std::vector<CaseFinding>& findings) {
  const bool by_parameter =
      fault.by != "copy" && fault.by != "round_trip" && fault.by != "more_rows";
  if (fault.by != "copy" && fault.kind != "replaced_parameter") {
    findings.push_back({{path + ".by"},
                        fmt::format("'by' says what a replaced_parameter becomes, and not what {} "
                                    "does; leave it out",
                                    fault.kind)});
  } else if (by_parameter && names.model_is_sound) {
    check_names({fault.by}, names.parameters, path + ".by",
                "parameter (nor is it copy, round_trip or more_rows)", findings);
  }
}

void check_fault(const Case& value, const FaultSpec& fault, const std::string& path,
                 const KnownNames& names, std::vector<CaseFinding>& findings) {
  const FaultKind* const kind = find_fault_kind(fault.kind);
  if (kind == nullptr) {
    return;  // the reader has said so
  }
  if (kind->parameter == FaultKind::Parameter::kNeeded && fault.parameter.empty()) {
    findings.push_back({{path + ".kind"},
                        fmt::format("fault \"{}\" happens to one parameter; expected parameter = "
                                    "\"...\"",
                                    fault.kind)});
  }
  if (kind->parameter == FaultKind::Parameter::kNone && !fault.parameter.empty()) {
    findings.push_back({{path + ".parameter"},
                        fmt::format("fault \"{}\" is not about one parameter; leave 'parameter' "
                                    "out",
                                    fault.kind)});
  } else if (names.model_is_sound && !fault.parameter.empty()) {
    check_names({fault.parameter}, names.parameters, path + ".parameter", "parameter", findings);
  }
  check_place(value, fault, path, findings);
  if (!kind->has_steps() && !fault.steps.empty()) {
    findings.push_back(
        {{path + ".step"},
         fmt::format("fault \"{}\" happens before the first step; leave 'step' out", fault.kind)});
  }
  if (!kind->has_ranks && !fault.ranks.empty()) {
    findings.push_back(
        {{path + ".rank"},
         fmt::format("fault \"{}\" is an option that all ranks share; leave 'rank' out",
                     fault.kind)});
  }
  Need need = need_of(value, *kind, names);
  if (!need.is_met) {
    need.keys.insert(need.keys.begin(), path + ".kind");
    findings.push_back({std::move(need.keys), std::move(need.text)});
  }
  check_by(fault, path, names, findings);
}

}  // namespace

void check_faults(const Case& value, const KnownNames& names, std::vector<CaseFinding>& findings) {
  for (std::size_t i = 0; i < value.faults.size(); ++i) {
    const FaultSpec& fault = value.faults[i];
    const std::string path = fmt::format("fault.{}", i);
    check_who_and_when(value, fault.ranks, fault.steps, path, findings);
    check_fault(value, fault, path, names, findings);
  }
}

}  // namespace lockstep::harness
