// SPDX-License-Identifier: Apache-2.0
// Contradictions in [[at]].
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "harness/at_actions.h"
#include "harness/case_facts.h"
#include "harness/model.h"
#include "harness/scenario/nearest_name.h"
#include "harness/scenario/rules.h"

namespace lockstep::harness {

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

namespace {

void check_actions(const AtSpec& at, const std::string& path, std::vector<CaseFinding>& findings) {
  const std::vector<std::string> actions = actions_of(at);
  if (actions.empty()) {
    std::vector<const char*> known;
    for (const AtAction& action : kAtActions) known.push_back(action.name);
    findings.push_back(
        {{path},
         fmt::format("this [[at]] does nothing; expected one of {}", fmt::join(known, ", "))});
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
    if (const AtSpec* other = at.leave ? evaluation_before_leaving(value, at) : nullptr) {
      findings.push_back({{path + ".leave", fmt::format("at.{}.evaluate", other - value.at.data())},
                          "inside join a rank leaves between two steps, and here it evaluates "
                          "first, a forward that "
                          "ranks without inputs shadow as one of a step more; let it evaluate "
                          "through the module or "
                          "after_step, or put this entry before the other"});
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
  if (names.model_is_sound && findings.size() == before) {
    check_routes(value, findings);
    check_without_effect(value, findings);
  }
}

}  // namespace lockstep::harness
