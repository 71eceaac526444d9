// SPDX-License-Identifier: Apache-2.0
// Contradictions in [expect] and what stands in its place.
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "harness/model.h"
#include "harness/program.h"
#include "harness/scenario/nearest_name.h"
#include "harness/scenario/rules.h"
#include "harness/scenario/tree.h"

namespace lockstep::harness {

namespace {

bool contains(const std::vector<std::string>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

/// Details belong to outcomes; one under another outcome would never be looked at.
void check_details(const ExpectSpec& expect, const std::string& path,
                   std::vector<CaseFinding>& findings) {
  const std::string& outcome = expect.outcome;
  const bool diverged = outcome == "diverged";
  const bool deadlock = outcome == "deadlock";
  const bool failure = outcome == "error" || outcome == "crash";
  const auto belongs = [&](bool is_set, bool fits, const char* key, const char* outcomes) {
    if (!is_set || fits) return;
    findings.push_back({{path + "." + key, path + ".outcome"},
                        fmt::format("{}.{} says nothing about outcome \"{}\"; it belongs to {}",
                                    path, key, outcome, outcomes)});
  };
  belongs(expect.step.has_value(), diverged || failure, "step", "diverged, error and crash");
  belongs(expect.rank.has_value(), diverged || failure, "rank", "diverged, error and crash");
  belongs(!expect.phase.empty(), diverged, "phase", "diverged");
  belongs(!expect.tensor.empty(), diverged, "tensor", "diverged");
  belongs(!expect.oracle.empty(), diverged, "oracle", "diverged");
  belongs(!expect.waiting.empty(), deadlock, "waiting", "deadlock");
  // In a deadlock some rank may also have failed, and an unfinished reduction may end as an error
  // or as wrong numbers.
  const bool stuck = deadlock || outcome == "error";
  belongs(!expect.cause.empty(), stuck || diverged, "cause", "diverged, deadlock and error");
  belongs(!expect.never_ready.empty(), stuck || diverged, "never_ready",
          "diverged, deadlock and error");
  belongs(!expect.cure.empty(), stuck || diverged, "cure", "diverged, deadlock and error");
  belongs(!expect.error.empty(), failure || deadlock, "error", "error, crash and deadlock");
  belongs(!expect.message.empty(), failure || deadlock, "message", "error, crash and deadlock");
}

/// A known difference is one that somebody has understood.
void check_reason(const ExpectSpec& expect, const std::string& path,
                  std::vector<CaseFinding>& findings) {
  const bool differs = leads_to("expect.torch", path);
  if (differs && expect.reason.empty()) {
    findings.push_back({{path + ".reason", path},
                        fmt::format("[{}] has no reason; expected one line that says why PyTorch's "
                                    "reducer does something else",
                                    path)});
  } else if (!differs && !expect.reason.empty()) {
    findings.push_back(
        {{path + ".reason"},
         fmt::format("{}.reason is not looked at; it belongs to [expect.torch]", path)});
  }
  for (const auto& [key, text] : {std::pair("since", expect.since), {"before", expect.before}}) {
    if (!differs && !text.empty()) {
      findings.push_back(
          {{path + "." + key},
           fmt::format("{}.{} is not looked at; it belongs to [expect.torch]", path, key)});
    }
  }
  if (version_of(expect.since) && version_of(expect.before) &&
      version_of(expect.since) >= version_of(expect.before)) {
    findings.push_back({{path + ".before", path + ".since"},
                        fmt::format("no version is from {} on and before {}; expected a later {}",
                                    expect.since, expect.before, path + ".before")});
  }
}

// What the references can work out: a hook's sums, but not what depends on a rank or on history.
void check_hook(const Case& value, const ExpectSpec& expect, const std::string& path,
                std::vector<CaseFinding>& findings) {
  const std::string& hook = value.ddp.hook;
  const bool averages = hook == "all_reduce" || hook == "all_reduce_copy";
  const bool is_sum =
      hook == "none" || averages || hook == "fp16_compress" || hook == "bf16_compress";
  // A hook divides by the number of all ranks.
  const bool is_mean = hook == "none" || (averages && value.ddp.join != "divide_by_active");
  if ((contains(expect.oracles, "serial") && !is_mean) ||
      (contains(expect.oracles, "replay") && !is_sum)) {
    findings.push_back(
        {{path + ".oracles", "ddp.hook"},
         fmt::format("hook \"{}\" does not compute the mean that the references do; expected {}",
                     hook,
                     is_sum ? "oracles = [\"ranks\", \"replay\"]" : "oracles = [\"ranks\"]")});
  }
}

void check_serial(const Case& value, const ExpectSpec& expect, const std::string& path,
                  const KnownNames& names, std::vector<CaseFinding>& findings) {
  const std::string key = path + ".oracles";
  const std::string outcome_key = path + ".outcome";
  const std::string& outcome = expect.outcome;
  const bool passes = outcome == "equal" || outcome == "within_bound";
  const bool serial = contains(expect.oracles, "serial");
  if (outcome == "within_bound" && !serial) {
    findings.push_back({{outcome_key, key},
                        fmt::format("only the serial oracle has a bound, and {} leaves it out; "
                                    "expected outcome = \"equal\"",
                                    key)});
  }
  if (!serial || !(passes || outcome == "diverged")) return;
  const std::string why_not = names.model_is_sound ? why_no_serial(value) : "";
  if (!why_not.empty()) {
    findings.push_back(
        {{key, outcome_key, path, "model"},
         fmt::format("the serial oracle is not defined for {}; expected oracles = [\"ranks\", "
                     "\"replay\"] in [{}]",
                     why_not, path)});
    return;
  }
  const bool one_batch = names.model_is_sound && is_one_batch(value);
  if (outcome == "equal" && !value.data.exact && !one_batch) {
    findings.push_back(
        {{outcome_key, key, path, "data.exact", "world.ranks", "train.micro_batches"},
         fmt::format("without data.exact the serial oracle adds in another order than {} ranks "
                     "and {} micro-batches do, so it can only be within its bound; expected "
                     "outcome = \"within_bound\", or oracles = [\"ranks\", \"replay\"]",
                     value.world.ranks, value.train.micro_batches)});
  }
}

void check_range(std::int64_t given, std::int64_t limit, const std::string& key,
                 const std::string& what, const std::string& limit_key,
                 std::vector<CaseFinding>& findings) {
  if (given < limit) return;
  findings.push_back({{key, limit_key},
                      fmt::format("{}: {} {} does not exist: {} = {}; expected 0 to {}", key, what,
                                  given, limit_key, limit, limit - 1)});
}

void check_deadlock(const Case& value, const ExpectSpec& expect, const std::string& path,
                    const KnownNames& names, std::vector<CaseFinding>& findings) {
  std::set<std::int64_t> waiting_ranks;
  for (std::size_t i = 0; i < expect.waiting.size(); ++i) {
    const ExpectWaiting& waiting = expect.waiting[i];
    const std::string at = fmt::format("{}.waiting.{}", path, i);
    check_range(waiting.rank, value.world.ranks, at + ".rank", "rank", "world.ranks", findings);
    check_range(waiting.step.value_or(0), value.train.steps, at + ".step", "step", "train.steps",
                findings);
    if (!waiting_ranks.insert(waiting.rank).second) {
      findings.push_back({{at + ".rank"},
                          fmt::format("rank {} is in {}.waiting twice; a rank waits in one "
                                      "collective",
                                      waiting.rank, path)});
    }
  }
  for (std::size_t i = 0; i < expect.never_ready.size(); ++i) {
    const ExpectNeverReady& never = expect.never_ready[i];
    const std::string at = fmt::format("{}.never_ready.{}", path, i);
    check_range(never.rank, value.world.ranks, at + ".rank", "rank", "world.ranks", findings);
    if (!names.model_is_sound) continue;
    for (std::size_t j = 0; j < never.parameters.size(); ++j) {
      const std::string& name = never.parameters[j];
      if (contains(names.parameters, name)) continue;
      findings.push_back(
          {{fmt::format("{}.parameters.{}", at, j), "model"},
           fmt::format("the model has no parameter '{}'; expected one of {}{}", name,
                       fmt::join(names.parameters, ", "), did_you_mean(name, names.parameters))});
    }
  }
}

// What was accumulated is averaged again; a joined rank's share of it then counts as zeros, which
// one process with one `.grad` for all ranks cannot tell.
void check_followed(const Case& value, const ExpectSpec& expect, const std::string& path,
                    std::vector<CaseFinding>& findings) {
  if (value.train.zero_grad == "never" && value.ddp.join != "off" &&
      contains(expect.oracles, "serial")) {
    findings.push_back({{path + ".oracles", path},
                        "the serial oracle does not follow gradients that are never zeroed inside "
                        "join; leave it out of oracles"});
  }
}

}  // namespace

void check_expectation(const Case& value, const ExpectSpec& expect, const std::string& path,
                       const KnownNames& names, std::vector<CaseFinding>& findings) {
  check_expected_schedules(value, expect, path, findings);
  check_followed(value, expect, path, findings);
  check_details(expect, path, findings);
  check_reason(expect, path, findings);
  check_serial(value, expect, path, names, findings);
  check_hook(value, expect, path, findings);
  check_deadlock(value, expect, path, names, findings);
  check_expected_ends(value, expect, path, findings);
  const auto check_where = [&](const std::string& at, std::optional<std::int64_t> rank,
                               std::optional<std::int64_t> step) {
    check_range(rank.value_or(0), value.world.ranks, at + ".rank", "rank", "world.ranks", findings);
    check_range(step.value_or(0), value.train.steps, at + ".step", "step", "train.steps", findings);
  };
  for (std::size_t i = 0; i < expect.issued.size(); ++i) {
    check_where(fmt::format("{}.issued.{}", path, i), expect.issued[i].rank, expect.issued[i].step);
  }
  for (std::size_t i = 0; i < expect.values.size(); ++i) {
    check_where(fmt::format("{}.values.{}", path, i), expect.values[i].rank, expect.values[i].step);
  }
  check_where(path, expect.rank, expect.step);
  if (!expect.oracle.empty() && !contains(expect.oracles, expect.oracle)) {
    findings.push_back({{path + ".oracle", path + ".oracles"},
                        fmt::format("oracle \"{}\" is not among those that are asked: {}; expected "
                                    "one of them",
                                    expect.oracle, fmt::join(expect.oracles, ", "))});
  }
}

}  // namespace lockstep::harness
