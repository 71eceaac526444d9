// SPDX-License-Identifier: Apache-2.0
// What each kind of fault does to the numbers, where the ranks end well.
#include <algorithm>

#include "harness/fuzz/predict/predict_mistake.h"
#include "harness/model.h"
#include "harness/model_plan.h"

namespace lockstep::harness::fuzz {

namespace {

constexpr std::int64_t kDrawsMin = 32;  // that all masks are alike has a chance of 2^-32

const AtSpec* find_event(const Case& value, bool (*what)(const AtSpec&)) {
  const auto found = std::find_if(value.at.begin(), value.at.end(), what);
  return found != value.at.end() ? &*found : nullptr;
}

bool is_trained(const Settled& facts, const std::string& parameter) {
  return std::find(facts.trained.begin(), facts.trained.end(), parameter) != facts.trained.end();
}

// Some rank other than 0 of a list.
std::optional<std::int64_t> other_than_0(const Case& value,
                                         const std::vector<std::int64_t>& ranks) {
  for (std::int64_t rank = 1; rank < value.world.ranks; ++rank) {
    if (covers(ranks, rank)) return rank;
  }
  return std::nullopt;
}

// A mistake that stays on the ranks that make it.
ExpectSpec on_ranks(const Case& value, const FaultSpec& fault, std::int64_t step, const char* phase,
                    const char* cause) {
  ExpectSpec expect = diverged(step, phase, oracle_of(value, fault.ranks), cause);
  expect.rank = first_rank(fault.ranks);
  return expect;
}

ExpectSpec of_losses(std::int64_t step, std::int64_t rank, const char* cause) {
  ExpectSpec expect = diverged(step, "forward", "replay", cause);
  expect.rank = rank;
  return expect;
}

std::int64_t numel(const Case& value, const std::string& parameter) {
  for (const ParameterSlot& slot : plan_model(value.model).slots) {
    if (slot.name == parameter) return numel_of(slot.sizes);
  }
  return 0;
}

bool has_state(const OptimizerSpec& optimizer) {
  return optimizer.kind != "sgd" || optimizer.momentum > 0.0;
}

// Numbers that one dropout draws in a micro-batch, between two linear blocks.
std::int64_t num_draws(const Case& value) {
  const ModelPlan plan = plan_model(value.model);
  for (std::size_t i = 1; i < plan.blocks.size(); ++i) {
    const BlockSpec& spec = plan.blocks[i].spec;
    if (spec.kind == BlockKind::kDropout && spec.rate == 0.5 &&
        plan.blocks[i - 1].spec.kind == BlockKind::kLinear) {
      return plan.blocks[i - 1].spec.out * value.train.batch_per_rank / value.train.micro_batches;
    }
  }
  return 0;
}

std::optional<ExpectSpec> of_data(const Case& value, const FaultSpec& fault) {
  const std::optional<FirstOther> other = first_other_batch(value, fault);
  if (!other) {
    return std::nullopt;
  }
  const char* const cause = fault.kind == "same_batches"   ? "same_batches"
                            : fault.kind == "mixed_steps"  ? "stale_batch"
                            : fault.kind == "shuffle_seed" ? "own_shuffle"
                                                           : "epoch_not_set";
  return of_losses(other->step, other->rank, cause);
}

std::optional<ExpectSpec> of_reload(const Case& value, const FaultSpec& fault) {
  const AtSpec* const reload = find_event(value, [](const AtSpec& at) { return at.reload; });
  if (reload == nullptr || reload->steps.size() != 1 || !are_all(value, reload->ranks)) {
    return std::nullopt;
  }
  const std::int64_t step = reload->steps.front();
  if (fault.kind == "optimizer_not_loaded") {
    const bool seen = has_state(value.train.optimizer) && covers(fault.steps, step);
    return seen ? std::optional(on_ranks(value, fault, step, "parameter", "optimizer_state_lost"))
                : std::nullopt;
  }
  if (!value.ddp.init_sync) {
    return of_losses(step, first_rank(fault.ranks), "");
  }
  // The broadcast at construction hands on what rank 0 has, and mends the others.
  return covers(fault.ranks, 0) ? of_losses(step, 0, "") : predict_unharmed(value);
}

std::optional<ExpectSpec> of_collectives(const Case& value, const FaultSpec& fault,
                                         std::int64_t step, const Settled& facts) {
  const bool at_bucket = fault.site.empty() || fault.site == "bucket";
  const bool all = are_all(value, fault.ranks);
  const bool sees_sum = value.world.ranks > 1;
  if (fault.kind == "slow_link") {
    return predict_unharmed(value);
  }
  if (!at_bucket) {
    return std::nullopt;
  }
  if (fault.kind == "corrupt_payload") {
    const bool many = std::all_of(facts.trained.begin(), facts.trained.end(),
                                  [&](const std::string& name) { return numel(value, name) > 1; });
    return on_ranks(value, fault, step, "gradient", many ? "corrupted" : "");
  }
  if (fault.kind == "swap_collectives") {
    // All the other way round: they meet. Only with another one behind it is it held back.
    const std::int64_t count =
        step == 0 || value.ddp.find_unused_parameters ? facts.first_buckets : facts.later_buckets;
    const bool swaps = fault.bucket && *fault.bucket + 1 < count;
    return swaps && all ? std::optional(predict_unharmed(value)) : std::nullopt;
  }
  if (!all || !sees_sum) {
    return std::nullopt;
  }
  if (fault.kind == "skip_collective" || fault.kind == "wrong_dtype") {
    return diverged(step, "gradient", "ranks", "local_over_world_size");
  }
  return fault.kind == "wrong_numel" ? std::optional(diverged(step, "gradient", "ranks"))
                                     : std::nullopt;
}

std::optional<ExpectSpec> of_replaced(const Case& value, const FaultSpec& fault, std::int64_t step,
                                      const Settled& facts) {
  // In float64 the trip through float32 rounds, and where that shows depends on when it is made.
  const bool rounds = value.model.dtype == "float64";
  const bool known = fault.by == "copy" ||
                     (fault.by == "round_trip" && !rounds && !value.ddp.find_unused_parameters);
  if (!known || !is_trained(facts, fault.parameter) || value.world.ranks == 1 ||
      value.ddp.static_graph) {
    return std::nullopt;
  }
  if (!value.ddp.find_unused_parameters) {
    return predict_drift(value, step, facts, {fault.parameter});
  }
  // The reducer takes the one that it knows for unused; the new one stays local.
  ExpectSpec expect = diverged(step, "gradient", "ranks");
  expect.tensor = fault.parameter;
  return expect;
}

}  // namespace

std::optional<ExpectSpec> predict_fault(const Case& value, const FaultSpec& fault,
                                        const Settled& facts) {
  const std::string& kind = fault.kind;
  const bool several = value.world.ranks > 1;
  const bool after_another = kind == "mixed_steps" || kind == "stale_gradient";
  const std::optional<std::int64_t> at = first_step(value, fault.steps, after_another ? 1 : 0);
  if (!at) {
    return std::nullopt;
  }
  const std::int64_t step = *at;
  const std::int64_t micro_samples = value.train.batch_per_rank / value.train.micro_batches;
  if (kind == "same_batches" || kind == "mixed_steps" || kind == "shuffle_seed" ||
      kind == "epoch_not_set") {
    return of_data(value, fault);
  }
  if (kind == "per_rank_init") {
    const auto rank = other_than_0(value, fault.ranks);
    if (!rank) return std::nullopt;
    if (value.ddp.init_sync && !has_fault(value, "no_initial_broadcast")) {
      return predict_unharmed(value);
    }
    ExpectSpec expect = diverged(-1, "init", "ranks", "own_initialisation");
    expect.rank = *rank;
    return expect;
  }
  if (kind == "sum_not_mean" && value.train.reduction == "mean") {
    std::int64_t outputs = 0;
    for (const auto& shape : output_shapes(value.model, value.data)) outputs += numel_of(shape);
    if (micro_samples * outputs == 1) return std::nullopt;
    return of_losses(step, first_rank(fault.ranks), "times_batch");
  }
  if (kind == "bad_batch") {
    return of_losses(step, first_rank(fault.ranks), "not_finite");
  }
  if (kind == "no_division" && several) {
    return diverged(step, "gradient", "replay",
                    are_all(value, fault.ranks) ? "times_world_size" : "");
  }
  if (kind == "forgotten_parameter" && several && is_trained(facts, fault.parameter) &&
      are_all(value, fault.ranks) && facts.trained.size() > 1) {
    ExpectSpec expect = diverged(0, "gradient", "ranks", "local_only");
    expect.tensor = fault.parameter;
    return expect;
  }
  if (kind == "stale_gradient" || kind == "corrupt_gradient") {
    const std::string& tensor = fault.parameter.empty() ? facts.trained.front() : fault.parameter;
    if (!is_trained(facts, tensor)) return std::nullopt;
    const bool one_bit = kind == "corrupt_gradient";
    ExpectSpec expect = on_ranks(value, fault, step, "gradient",
                                 !one_bit                   ? "stale_gradient"
                                 : numel(value, tensor) > 1 ? "corrupted"
                                                            : "");
    expect.tensor = tensor;
    return expect;
  }
  if (kind == "sync_before_last_micro_batch" && several) {
    return diverged(step, "gradient", "ranks",
                    are_all(value, fault.ranks) ? "micro_batch_not_reduced" : "");
  }
  if (kind == "clip_before_sync" && value.train.clip_norm <= 0.01) {
    return diverged(step, "gradient", "replay");
  }
  if (kind == "replaced_parameter") {
    return of_replaced(value, fault, step, facts);
  }
  if (kind == "optimizer_on_copies") {
    return on_ranks(value, fault, 0, "parameter", "not_updated");
  }
  if (kind == "buffers_not_synced" && several && uses_batch_norm(value.model) &&
      value.ddp.broadcast_buffers && value.train.steps > 1) {
    ExpectSpec expect = diverged(1, "buffer", "replay", "local_buffers");
    expect.rank = 1;
    return expect;
  }
  if (kind == "optimizer_not_loaded" || kind == "model_not_loaded") {
    return of_reload(value, fault);
  }
  if (kind == "dropout_seed" && num_draws(value) >= kDrawsMin) {
    const auto rank = other_than_0(value, fault.ranks);
    return rank ? std::optional(of_losses(0, *rank, "shared_noise")) : std::nullopt;
  }
  if (kind == "window_scale" && value.train.reduction == "mean") {
    const AtSpec* const window =
        find_event(value, [](const AtSpec& event) { return event.micro_batches.has_value(); });
    const bool seen = window != nullptr && window->steps.size() == 1 &&
                      are_all(value, window->ranks) &&
                      *window->micro_batches < value.train.micro_batches &&
                      covers(fault.steps, window->steps.front());
    return seen ? std::optional(diverged(window->steps.front(), "gradient", "replay"))
                : std::nullopt;
  }
  return of_collectives(value, fault, step, facts);
}

}  // namespace lockstep::harness::fuzz
