// SPDX-License-Identifier: Apache-2.0
// What an [[at]] entry does to the numbers, where the ranks end well.
#include <algorithm>
#include <cmath>

#include "harness/fuzz/predict/predict_mistake.h"
#include "harness/model.h"
#include "harness/program.h"

namespace lockstep::harness::fuzz {

namespace {

// The first step whose forwards come after the entry; nothing if there is none, or if it comes
// between the micro-batches of a step.
std::optional<std::int64_t> first_step_after(const Case& value, const AtSpec& at) {
  const std::optional<std::int64_t> step = first_step(value, at.steps, 0);
  if (!step || at.when == "before_forward") {
    return step;
  }
  const bool is_over =
      at.when == "after_step" || (at.when == "after_backward" && value.train.micro_batches == 1);
  return is_over && *step + 1 < value.train.steps ? std::optional(*step + 1) : std::nullopt;
}

// Of those that the entry names, in the order of registration.
std::vector<std::string> named_parameters(const Case& value,
                                          const std::vector<std::string>& names) {
  std::vector<std::string> result;
  for (const std::string& parameter : parameter_names(value.model)) {
    const bool is_named = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      const std::vector<std::string> all = parameters_of(value.model, name);
      return std::find(all.begin(), all.end(), parameter) != all.end();
    });
    if (is_named) result.push_back(parameter);
  }
  return result;
}

ExpectSpec on_ranks(const AtSpec& at, ExpectSpec expect) {
  if (!at.ranks.empty()) {
    expect.rank = first_rank(at.ranks);
  }
  return expect;
}

std::optional<ExpectSpec> of_freeze(const Case& value, const AtSpec& at, const Settled& facts) {
  const std::vector<std::string> frozen = named_parameters(value, at.freeze);
  const std::optional<std::int64_t> step = first_step_after(value, at);
  if (!step || !value.ddp.find_unused_parameters || value.ddp.static_graph ||
      frozen.size() >= facts.trained.size()) {
    return std::nullopt;
  }
  if (are_all(value, at.ranks)) {
    return predict_unharmed(value);
  }
  // The ranks average what the others have, and a zero (I6).
  ExpectSpec expect =
      diverged(*step, "gradient", "replay", at.ranks.size() == 1 ? "rank_missing" : "");
  expect.tensor = frozen.front();
  return expect;
}

std::optional<ExpectSpec> of_unfreeze(const Case& value, const AtSpec& at) {
  const std::vector<std::string> unfrozen = named_parameters(value, at.unfreeze);
  const std::optional<std::int64_t> step = first_step_after(value, at);
  const auto was_frozen = [&](const std::string& parameter) {
    const std::vector<std::string> all = named_parameters(value, value.model.frozen);
    return std::find(all.begin(), all.end(), parameter) != all.end();
  };
  if (!step || value.world.ranks == 1 ||
      !std::all_of(unfrozen.begin(), unfrozen.end(), was_frozen)) {
    return std::nullopt;
  }
  // A10: the reducer does not know it.
  ExpectSpec expect = on_ranks(at, diverged(*step, "gradient", "ranks"));
  expect.tensor = unfrozen.front();
  return expect;
}

std::optional<ExpectSpec> of_lr(const Case& value, const AtSpec& at) {
  if (are_all(value, at.ranks)) {
    return predict_unharmed(value);
  }
  const std::optional<std::int64_t> first = first_step(value, at.steps, 0);
  const std::int64_t step = *first + (at.when == "after_step" ? 1 : 0);
  const double ratio = *at.lr / value.train.optimizer.lr;
  const bool is_seen = step < value.train.steps && (ratio >= 1.5 || ratio <= 0.67);
  return is_seen ? std::optional(on_ranks(at, diverged(step, "parameter", "ranks"))) : std::nullopt;
}

// Those of rank 0 are broadcast before the next forward, which keeps the most of them (J1).
std::optional<ExpectSpec> of_scaled_buffers(const Case& value, const AtSpec& at,
                                            const Settled& facts) {
  const std::optional<std::int64_t> step = first_step(value, at.steps, 0);
  const bool is_simple = facts.num_buffers > 0 && value.ddp.broadcast_buffers &&
                         at.when == "after_step" && value.train.micro_batches == 1 &&
                         at.steps.size() == 1 && at.scale_buffers >= 2.0 &&
                         *step + 1 < value.train.steps;
  if (!is_simple) {
    return std::nullopt;
  }
  if (!covers(at.ranks, 0)) {
    return predict_unharmed(value);
  }
  ExpectSpec expect = diverged(*step + 1, "buffer", "replay");
  expect.rank = 0;
  return expect;
}

// A rank that skips a step, or leaves, when all of it is reduced: it does not update.
std::optional<ExpectSpec> of_missing_step(const Case& value, const AtSpec& at) {
  const bool all = are_all(value, at.ranks);
  if (at.leave && (all || at.when == "after_step")) {
    return predict_unharmed(value);
  }
  if (all && at.when == "before_forward" && at.micro_batch.value_or(0) == 0) {
    return predict_unharmed(value);
  }
  if (all || (at.when != "after_backward" && !at.leave)) {
    return std::nullopt;
  }
  ExpectSpec expect = on_ranks(at, diverged(*first_step(value, at.steps, 0), "parameter", "ranks"));
  expect.tensor = "(steps completed)";
  return expect;
}

}  // namespace

std::optional<ExpectSpec> predict_event(const Case& value, const AtSpec& at, const Settled& facts) {
  const std::optional<std::int64_t> first = first_step(value, at.steps, 0);
  const bool all = are_all(value, at.ranks);
  const bool several = value.world.ranks > 1;
  if (!first || at.from_ms > 0) {
    return std::nullopt;
  }
  // Nothing of these touches a number; where they keep others waiting, that has been told.
  const bool is_harmless =
      at.sleep_ms > 0 || at.retry || !at.collective.empty() || at.reload || at.add_buffer > 0;
  if (is_harmless) {
    return predict_unharmed(value);
  }
  if (at.evaluate > 0) {
    const bool arms = at.evaluate_with_gradients && at.evaluate_through == "wrapper";
    return arms && value.train.micro_batches > 1 ? std::nullopt
                                                 : std::optional(predict_unharmed(value));
  }
  if (at.skip_step || at.leave) {
    return of_missing_step(value, at);
  }
  if (at.bypass && all) {
    return several ? diverged(*first, "gradient", "ranks", "local_only") : predict_unharmed(value);
  }
  if (at.copy_gradients && !value.ddp.gradient_as_bucket_view) {
    return predict_unharmed(value);
  }
  if (!at.sync_buffers.empty() && all && facts.num_buffers > 0) {
    return predict_unharmed(value);
  }
  if (at.scale_buffers != 1.0) {
    return of_scaled_buffers(value, at, facts);
  }
  if (at.keep_gradients) {
    // F11: the whole .grad is reduced, so that all ranks have the same.
    const std::optional<std::int64_t> step = first_step(value, at.steps, 1);
    return step ? std::optional(diverged(*step, "gradient", "replay")) : std::nullopt;
  }
  if (at.ascend > 0.0) {
    ExpectSpec expect = diverged(*first, "forward", "replay");
    expect.rank = first_rank(at.ranks);
    return expect;
  }
  if (!at.freeze.empty()) {
    return of_freeze(value, at, facts);
  }
  if (!at.unfreeze.empty()) {
    return of_unfreeze(value, at);
  }
  return at.lr ? of_lr(value, at) : std::nullopt;
}

}  // namespace lockstep::harness::fuzz
