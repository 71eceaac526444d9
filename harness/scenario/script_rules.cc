// SPDX-License-Identifier: Apache-2.0
// What single events and faults need from the rest of the case.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "harness/model.h"
#include "harness/scenario/nearest_name.h"
#include "harness/scenario/rules.h"

namespace lockstep::harness {

void check_names(const std::vector<std::string>& given, const std::vector<std::string>& known,
                 const std::string& key, const std::string& what,
                 std::vector<CaseFinding>& findings) {
  for (const std::string& name : given) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    findings.push_back({{key, "model"},
                        fmt::format("{}: the model has no {} '{}'; expected one of {}{}", key, what,
                                    name, fmt::join(known, ", "), did_you_mean(name, known))});
  }
}

void check_shares(const Case& value, const AtSpec& at, const std::string& path,
                  std::vector<CaseFinding>& findings) {
  const TrainSpec& train = value.train;
  const std::int64_t share = train.batch_per_rank / train.micro_batches;
  if (at.samples && (*at.samples > share || *at.samples % train.forwards_per_backward != 0)) {
    findings.push_back(
        {{path + ".samples", "train.batch_per_rank"},
         fmt::format("samples = {} of the {} that a micro-batch has, in {} forwards of one size; "
                     "expected a multiple of {}, at most {}",
                     *at.samples, share, train.forwards_per_backward, train.forwards_per_backward,
                     share)});
  }
  if (at.micro_batches && *at.micro_batches > train.micro_batches) {
    findings.push_back({{path + ".micro_batches", "train.micro_batches"},
                        fmt::format("micro_batches = {}, but a step has {}; expected at most that",
                                    *at.micro_batches, train.micro_batches)});
  }
  if (at.bypass && !reduces_in_backward(value.ddp)) {
    findings.push_back({{path + ".bypass", "ddp.sync"},
                        fmt::format("sync \"{}\" has no wrapper that could be bypassed; expected "
                                    "ddp.sync = \"ddp\" or \"torch\"",
                                    value.ddp.sync)});
  }
}

void check_heads(const Case& value, const AtSpec& at, const std::string& path,
                 std::vector<CaseFinding>& findings) {
  const std::vector<std::string> heads = head_names(value.model);
  check_names(at.without_loss, heads, path + ".without_loss", "head", findings);
  if (!at.without_loss.empty() && at.without_loss.size() >= heads.size()) {
    findings.push_back({{path + ".without_loss", "model"},
                        "nothing is left of the loss; leave one head in, or use detach"});
  }
}

void check_fault_needs(const Case& value, const FaultSpec& fault, const std::string& path,
                       const KnownNames& names, std::vector<CaseFinding>& findings) {
  const auto needs = [&](const char* kind, bool has, const std::string& key, const char* what) {
    if (fault.kind == kind && !has) {
      findings.push_back({{path + ".kind", key}, fmt::format("{} needs {}", fault.kind, what)});
    }
  };
  const bool reloads =
      std::any_of(value.at.begin(), value.at.end(), [](const AtSpec& at) { return at.reload; });
  const bool short_windows = std::any_of(value.at.begin(), value.at.end(), [](const AtSpec& at) {
    return at.micro_batches.has_value();
  });
  const bool has_hook = value.ddp.sync == "ddp" && value.ddp.hook != "none";
  const bool drops = !names.model_is_sound || uses_dropout(value.model);
  const char* const load = "something to load; expected an [[at]] with reload = true";
  const char* const hook = "a hook; expected ddp.hook, and ddp.sync = \"ddp\"";
  needs("optimizer_not_loaded", reloads, "at", load);
  needs("model_not_loaded", reloads, "at", load);
  needs("window_scale", short_windows, "at",
        "a shorter window; expected an [[at]] with micro_batches");
  needs("dropout_seed", drops, "model", "a dropout in the model");
  needs("shuffle_seed", value.data.shuffle, "data.shuffle", "data.shuffle = true");
  needs("epoch_not_set", value.data.shuffle, "data.shuffle", "data.shuffle = true");
  needs("hook_raises", has_hook, "ddp.hook", hook);
  needs("hook_result", has_hook, "ddp.hook", hook);
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

}  // namespace lockstep::harness
