// SPDX-License-Identifier: Apache-2.0
// Contradictions in [[at]] and [[fault]].
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "harness/model.h"
#include "harness/scenario/nearest_name.h"
#include "harness/scenario/rules.h"

namespace lockstep::harness {

namespace {

void check_below(const std::vector<std::int64_t>& values, std::int64_t limit,
                 const std::string& path, const std::string& key, const std::string& limit_key,
                 std::vector<CaseFinding>& findings) {
  for (const std::int64_t value : values) {
    if (value < limit) continue;
    findings.push_back({{path + "." + key, limit_key},
                        fmt::format("{0} {1} does not exist: {2} = {3}; expected 0 to {4}", key,
                                    value, limit_key, limit, limit - 1)});
  }
}

void check_who_and_when(const Case& value, const std::vector<std::int64_t>& ranks,
                        const std::vector<std::int64_t>& steps, const std::string& path,
                        std::vector<CaseFinding>& findings) {
  check_below(ranks, value.world.ranks, path, "rank", "world.ranks", findings);
  check_below(steps, value.train.steps, path, "step", "train.steps", findings);
}

std::vector<std::string> actions_of(const AtSpec& at) {
  std::vector<std::string> actions;
  const auto add = [&](bool is_set, const char* key) {
    if (is_set) actions.emplace_back(key);
  };
  add(!at.skip.empty(), "skip");
  add(!at.exit_after.empty(), "exit_after");
  add(!at.mute.empty(), "mute");
  add(!at.freeze.empty(), "freeze");
  add(!at.unfreeze.empty(), "unfreeze");
  add(at.lr.has_value(), "lr");
  add(!at.raise.empty(), "raise");
  add(at.stall, "stall");
  add(at.leave, "leave");
  add(at.skip_step, "skip_step");
  add(at.detach, "detach");
  add(at.sleep_ms > 0, "sleep_ms");
  add(!at.collective.empty(), "collective");
  add(at.evaluate > 0, "evaluate");
  add(at.reload, "reload");
  add(at.add_buffer > 0, "add_buffer");
  add(!at.without_loss.empty(), "without_loss");
  add(at.samples.has_value(), "samples");
  add(at.micro_batches.has_value(), "micro_batches");
  add(at.bypass, "bypass");
  add(at.copy_gradients, "copy_gradients");
  add(!at.sync_buffers.empty(), "sync_buffers");
  add(at.scale_buffers != 1.0, "scale_buffers");
  add(at.keep_gradients, "keep_gradients");
  add(at.ascend > 0.0, "ascend");
  return actions;
}

void check_actions(const AtSpec& at, const std::string& path, std::vector<CaseFinding>& findings) {
  const std::vector<std::string> actions = actions_of(at);
  if (actions.empty()) {
    findings.push_back({{path},
                        "this [[at]] does nothing; expected one of skip, exit_after, mute, freeze, "
                        "unfreeze, lr, raise, stall, leave, skip_step, detach, sleep_ms, "
                        "collective, evaluate, reload, add_buffer, without_loss, samples, "
                        "micro_batches, bypass, copy_gradients, sync_buffers, scale_buffers, "
                        "keep_gradients, ascend"});
    return;
  }
  if (actions.size() > 1) {
    findings.push_back({{path + "." + actions[1]},
                        fmt::format("this [[at]] does several things: {}; expected one, and "
                                    "another [[at]] for each of the others",
                                    fmt::join(actions, ", "))});
  }
  const AtSpec defaults;
  const std::string& action = actions.front();
  if (holds_for_whole_step(at) && at.when != defaults.when) {
    findings.push_back(
        {{path + ".when"},
         fmt::format("{} holds for a whole forward or step and has no 'when'; leave it out",
                     action)});
  }
  if (at.skip_step && at.when == "after_step") {
    findings.push_back({{path + ".when"},
                        "after the step nothing of it is left to skip; expected an earlier place"});
  }
  if ((at.skip_step || at.reload || at.bypass || at.micro_batches || at.keep_gradients ||
       at.ascend > 0.0) &&
      at.micro_batch) {
    findings.push_back(
        {{path + ".micro_batch"},
         fmt::format("{} is about a whole step and has no 'micro_batch'; leave it out", action)});
  }
  const bool has_forward = !at.skip.empty() || !at.exit_after.empty() || !at.mute.empty() ||
                           !at.without_loss.empty() ||
                           (at.scale_buffers != 1.0 && at.when == defaults.when);
  if (at.forward && !has_forward) {
    findings.push_back(
        {{path + ".forward"},
         fmt::format("{} is not about one forward; 'forward' belongs to skip, exit_after, mute, "
                     "without_loss and scale_buffers before_forward",
                     action)});
  }
  // References merge a step's micro-batches, so what counts within a window has no meaning there.
  if ((at.detach || !at.freeze.empty() || !at.unfreeze.empty()) && at.micro_batch) {
    findings.push_back({{path + ".micro_batch"},
                        fmt::format("{} holds for whole steps and has no 'micro_batch'; leave it "
                                    "out",
                                    action)});
  }
  if (at.collective.empty() && at.collective_numel != defaults.collective_numel) {
    findings.push_back({{path + ".collective_numel"},
                        "collective_numel says the size of a 'collective', and there is none"});
  }
  if (at.evaluate == 0 && at.evaluate_through != defaults.evaluate_through) {
    findings.push_back({{path + ".evaluate_through"},
                        "evaluate_through says how to 'evaluate', and nothing is evaluated"});
  }
  if (at.evaluate == 0 && at.evaluate_with_gradients) {
    findings.push_back(
        {{path + ".evaluate_with_gradients"},
         "evaluate_with_gradients says how to 'evaluate', and nothing is evaluated"});
  }
}

/// Parameters may be named by any of their names, and blocks stand for theirs.
void check_parameters(const Case& value, const std::vector<std::string>& given,
                      const std::string& key, const KnownNames& names,
                      std::vector<CaseFinding>& findings) {
  for (const std::string& name : given) {
    if (!parameters_of(value.model, name).empty()) continue;
    check_names({name}, names.parameters, key, "parameter or block with parameters", findings);
  }
}

/// Every value that some [[at]] names, and one that none does.
std::vector<std::int64_t> representatives(std::set<std::int64_t> named, std::int64_t limit) {
  std::int64_t other = 0;
  while (named.count(other) != 0) ++other;
  named.insert(other);
  std::vector<std::int64_t> values;
  for (const std::int64_t value : named) {
    if (value < limit) values.push_back(value);
  }
  return values;
}

// Several [[at]] may hold at one rank, step and micro-batch; their routes add up. Every sum that
// occurs is checked once, cited at the last entry that takes part in it.
void check_routes(const Case& value, std::vector<CaseFinding>& findings) {
  std::set<std::int64_t> ranks, steps, micro_batches, forwards;
  for (const AtSpec& at : value.at) {
    if (!at.is_routing()) continue;
    ranks.insert(at.ranks.begin(), at.ranks.end());
    steps.insert(at.steps.begin(), at.steps.end());
    if (at.micro_batch) micro_batches.insert(*at.micro_batch);
    if (at.forward) forwards.insert(*at.forward);
  }
  std::set<std::vector<std::size_t>> seen;
  const auto check_place = [&](std::int64_t rank, std::int64_t step, std::int64_t micro,
                               std::int64_t forward) {
    std::vector<std::size_t> together;
    Route route;
    for (std::size_t i = 0; i < value.at.size(); ++i) {
      const AtSpec& at = value.at[i];
      if (!at.is_routing() || !covers(at.ranks, rank) || !covers(at.steps, step) ||
          at.micro_batch.value_or(micro) != micro || at.forward.value_or(forward) != forward) {
        continue;
      }
      together.push_back(i);
      route.skip.insert(route.skip.end(), at.skip.begin(), at.skip.end());
      if (!at.exit_after.empty()) route.exit_after = at.exit_after;
      route.mute.insert(route.mute.end(), at.mute.begin(), at.mute.end());
    }
    if (together.empty() || !seen.insert(together).second) return;
    for (const ModelFinding& finding : check_route(value.model, value.data, route)) {
      const std::string key = fmt::format("at.{}.{}", together.back(), finding.key);
      findings.push_back({{key, "model"}, fmt::format("{}: {}", key, finding.message)});
    }
  };
  for (const std::int64_t rank : representatives(ranks, value.world.ranks)) {
    for (const std::int64_t step : representatives(steps, value.train.steps)) {
      for (const std::int64_t micro : representatives(micro_batches, value.train.micro_batches)) {
        for (const std::int64_t forward :
             representatives(forwards, value.train.forwards_per_backward)) {
          check_place(rank, step, micro, forward);
        }
      }
    }
  }
}

struct FaultRule {
  const char* kind;
  enum class Parameter { kNone, kOptional, kNeeded } parameter;
  bool has_steps, has_ranks;
};

constexpr FaultRule kFaultRules[] = {
    {"no_initial_broadcast", FaultRule::Parameter::kNone, false, false},
    {"buffers_not_synced", FaultRule::Parameter::kNone, false, false},
    {"join_divisor", FaultRule::Parameter::kNone, false, false},
    {"per_rank_init", FaultRule::Parameter::kNone, false, true},
    {"same_batches", FaultRule::Parameter::kNone, false, true},
    {"optimizer_on_copies", FaultRule::Parameter::kNone, false, true},
    {"forgotten_parameter", FaultRule::Parameter::kNeeded, false, true},
    {"replaced_parameter", FaultRule::Parameter::kNeeded, true, true},
    {"local_batch_norm", FaultRule::Parameter::kNone, false, true},
    {"other_dtype", FaultRule::Parameter::kNeeded, false, true},
    {"other_shape", FaultRule::Parameter::kNeeded, false, true},
    {"shuffle_seed", FaultRule::Parameter::kNone, false, true},
    {"epoch_not_set", FaultRule::Parameter::kNone, false, true},
    {"dropout_seed", FaultRule::Parameter::kNone, false, true},
    {"model_not_loaded", FaultRule::Parameter::kNone, false, true},
    {"corrupt_gradient", FaultRule::Parameter::kOptional, true, true},
    {"stale_gradient", FaultRule::Parameter::kOptional, true, true},
};

void check_fault(const Case& value, const FaultSpec& fault, const std::string& path,
                 const KnownNames& names, std::vector<CaseFinding>& findings) {
  FaultRule rule{"", FaultRule::Parameter::kNone, true, true};
  for (const FaultRule& known : kFaultRules) {
    if (fault.kind == known.kind) rule = known;
  }
  if (rule.parameter == FaultRule::Parameter::kNeeded && fault.parameter.empty()) {
    findings.push_back({{path + ".kind"},
                        fmt::format("fault \"{}\" happens to one parameter; expected parameter = "
                                    "\"...\"",
                                    fault.kind)});
  }
  if (rule.parameter == FaultRule::Parameter::kNone && !fault.parameter.empty()) {
    findings.push_back({{path + ".parameter"},
                        fmt::format("fault \"{}\" is not about one parameter; leave 'parameter' "
                                    "out",
                                    fault.kind)});
  } else if (names.model_is_sound && !fault.parameter.empty()) {
    check_names({fault.parameter}, names.parameters, path + ".parameter", "parameter", findings);
  }
  check_place(value, fault, path, findings);
  if (fault.kind == "skip_wait" && !value.world.simulator_only) {
    findings.push_back({{path + ".kind", "world.simulator_only"},
                        "what comes of a forgotten wait is a matter of time on a real transport; "
                        "expected world.simulator_only = true"});
  }
  if (!rule.has_steps && !fault.steps.empty()) {
    findings.push_back(
        {{path + ".step"},
         fmt::format("fault \"{}\" happens before the first step; leave 'step' out", fault.kind)});
  }
  if (!rule.has_ranks && !fault.ranks.empty()) {
    findings.push_back(
        {{path + ".rank"},
         fmt::format("fault \"{}\" is an option that all ranks share; leave 'rank' out",
                     fault.kind)});
  }
  if (fault.kind == "clip_before_sync" && reduces_in_backward(value.ddp)) {
    findings.push_back({{path + ".kind", "ddp.sync"},
                        fmt::format("clip_before_sync cannot happen with ddp.sync = \"{}\", which "
                                    "synchronises inside backward; expected ddp.sync = "
                                    "\"per_parameter\" or \"flat\"",
                                    value.ddp.sync)});
  }
  if (fault.kind == "clip_before_sync" && value.train.clip_norm == 0.0) {
    findings.push_back({{path + ".kind"},
                        "clip_before_sync needs gradient clipping; expected train.clip_norm "
                        "above 0"});
  }
  if (fault.kind == "sync_before_last_micro_batch" && value.train.micro_batches < 2) {
    findings.push_back({{path + ".kind", "train.micro_batches"},
                        "sync_before_last_micro_batch needs at least two micro-batches; expected "
                        "train.micro_batches above 1"});
  }
  check_fault_needs(value, fault, path, names, findings);
  if (fault.kind == "local_batch_norm" && names.model_is_sound &&
      !uses_sync_batch_norm(value.model)) {
    findings.push_back({{path + ".kind", "model"},
                        "local_batch_norm spoils a sync_batch_norm, and the model has none"});
  }
  const std::string& join = value.ddp.join;
  if (fault.kind == "join_divisor" && (join == "off" || join == "throw")) {
    findings.push_back(
        {{path + ".kind", "ddp.join"},
         fmt::format("join_divisor takes the other divisor than ddp.join says, which "
                     "is \"{}\"; expected \"divide_by_initial\" or "
                     "\"divide_by_active\"",
                     join)});
  }
  if (fault.kind == "stop" && value.world.timeout_ms == 0) {
    findings.push_back({{path + ".kind", "world.timeout_ms"},
                        "a process that is stopped is longer so than its peers wait, and these "
                        "wait for ever; expected world.timeout_ms above 0"});
  }
}

}  // namespace

void check_events(const Case& value, const KnownNames& names, std::vector<CaseFinding>& findings) {
  const std::size_t before = findings.size();
  for (std::size_t i = 0; i < value.at.size(); ++i) {
    const AtSpec& at = value.at[i];
    const std::string path = fmt::format("at.{}", i);
    check_who_and_when(value, at.ranks, at.steps, path, findings);
    if (at.micro_batch) {
      check_below({*at.micro_batch}, value.train.micro_batches, path, "micro_batch",
                  "train.micro_batches", findings);
    }
    if (at.forward) {
      check_below({*at.forward}, value.train.forwards_per_backward, path, "forward",
                  "train.forwards_per_backward", findings);
    }
    check_actions(at, path, findings);
    check_place(value, at, path, findings);
    check_shares(value, at, path, findings);
    if (at.leave && value.ddp.join != "off" &&
        (at.micro_batch || at.when == "after_forward" || at.when == "after_backward")) {
      findings.push_back({{path + (at.micro_batch ? ".micro_batch" : ".when"), "ddp.join"},
                          "inside join a rank leaves between two steps, for what it did of a step "
                          "would count on some ranks only; expected when = \"before_forward\" or "
                          "\"after_step\", and no micro_batch"});
    }
    if (!names.model_is_sound) continue;
    check_heads(value, at, path, findings);
    check_names(at.skip, names.blocks, path + ".skip", "block", findings);
    check_names(at.mute, names.blocks, path + ".mute", "block", findings);
    if (!at.exit_after.empty()) {
      check_names({at.exit_after}, names.blocks, path + ".exit_after", "block", findings);
    }
    check_parameters(value, at.freeze, path + ".freeze", names, findings);
    check_parameters(value, at.unfreeze, path + ".unfreeze", names, findings);
  }
  if (names.model_is_sound && findings.size() == before) check_routes(value, findings);
}

void check_faults(const Case& value, const KnownNames& names, std::vector<CaseFinding>& findings) {
  for (std::size_t i = 0; i < value.faults.size(); ++i) {
    const FaultSpec& fault = value.faults[i];
    const std::string path = fmt::format("fault.{}", i);
    check_who_and_when(value, fault.ranks, fault.steps, path, findings);
    check_fault(value, fault, path, names, findings);
  }
}

}  // namespace lockstep::harness
