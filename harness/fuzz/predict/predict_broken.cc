// SPDX-License-Identifier: Apache-2.0
// What must come out of a script with a mistake.
#include <algorithm>

#include "harness/fault_kinds.h"
#include "harness/fuzz/meeting.h"
#include "harness/fuzz/predict/predict.h"
#include "harness/fuzz/predict/predict_mistake.h"
#include "harness/fuzz/script_traits.h"
#include "harness/fuzz/valid/valid_facts.h"
#include "harness/fuzz/valid/valid_rules.h"
#include "harness/model.h"
#include "harness/program.h"

namespace lockstep::harness::fuzz {

ExpectSpec diverged(std::int64_t step, const char* phase, const char* oracle, const char* cause) {
  ExpectSpec expect;
  expect.outcome = "diverged";
  expect.oracles = {"ranks", "replay"};
  expect.step = step;
  expect.phase = phase;
  expect.oracle = oracle;
  expect.cause = cause;
  return expect;
}

ExpectSpec predict_unharmed(const Case& value) {
  ExpectSpec expect = predict_valid(value);
  if (value.train.reduction == "sum" && value.world.ranks > 1) {
    // The mean over ranks of sums is not the sum over the batch.
    expect = {};
    expect.oracles = {"ranks", "replay"};
  }
  return expect;
}

const char* oracle_of(const Case& value, const std::vector<std::int64_t>& ranks) {
  return are_all(value, ranks) ? "replay" : "ranks";
}

std::int64_t first_rank(const std::vector<std::int64_t>& ranks) {
  return ranks.empty() ? 0 : *std::min_element(ranks.begin(), ranks.end());
}

std::optional<std::int64_t> first_step(const Case& value, const std::vector<std::int64_t>& steps,
                                       std::int64_t least) {
  for (std::int64_t step = least; step < value.train.steps; ++step) {
    if (covers(steps, step)) return step;
  }
  return std::nullopt;
}

namespace {

bool is_dealt_unevenly(const Case& value) {
  const std::vector<std::int64_t>& steps = value.train.steps_of_rank;
  return !steps.empty() && *std::min_element(steps.begin(), steps.end()) !=
                               *std::max_element(steps.begin(), steps.end());
}

// Whether ranks do it that others do not, in some step.
bool some_only(const Case& value, const AtSpec& at) {
  for (std::int64_t step = 0; step < value.train.steps; ++step) {
    if (covers(at.steps, step) && !all_ranks_do(value, at, step)) return true;
  }
  return false;
}

bool is_mistake(const Case& value, const AtSpec& at) {
  const bool agrees = value.train.agree != "never";
  const bool alone = some_only(value, at);
  if (at.stall || (!at.raise.empty() && (!at.retry || (alone && !agrees)))) {
    return true;
  }
  if (at.bypass) {
    return value.world.ranks > 1;
  }
  if (at.keep_gradients) {
    return value.train.zero_grad != "never" && first_step(value, at.steps, 1).has_value();
  }
  if (at.scale_buffers != 1.0) {
    return has_buffers(value) && covers(at.ranks, 0);
  }
  if (at.skip_step) {
    return alone && !agrees;
  }
  if (at.leave) {
    return alone && value.ddp.join == "off";
  }
  if (at.evaluate > 0) {
    return alone && at.evaluate_through == "wrapper" &&
           (has_buffers(value) || at.evaluate_with_gradients);
  }
  return alone && (at.detach || !at.collective.empty() || at.reload || at.add_buffer > 0 ||
                   at.copy_gradients || !at.sync_buffers.empty() || at.ascend > 0.0 || at.lr ||
                   !at.freeze.empty() || !at.unfreeze.empty());
}

// Steps without a backward that counts.
bool is_passed_over(const Case& value, std::int64_t rank, std::int64_t step) {
  return std::any_of(value.at.begin(), value.at.end(), [&](const AtSpec& at) {
    return (at.detach || at.bypass || at.skip_step) && covers(at.ranks, rank) &&
           covers(at.steps, step);
  });
}

// Parameters that some backward does not reach, and nothing looks for them, or a static graph that
// is none.
bool loses_gradients(const Case& value) {
  const bool is_static = value.ddp.static_graph;
  const bool by_output =
      value.train.loss == "mse" || value.train.loss == "cross_entropy" || value.train.loss == "dot";
  if (!reduces_in_backward(value.ddp) || !by_output || value.train.sync_on == "never" ||
      (value.ddp.find_unused_parameters && !is_static)) {
    return false;
  }
  const bool freezes = any_event(value, [](const AtSpec& at) { return !at.freeze.empty(); });
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    std::optional<std::vector<std::string>> first;
    for (std::int64_t step = 0; step < value.train.steps; ++step) {
      const std::int64_t micro = micro_batches_of(value, rank, step) - 1;
      if (is_passed_over(value, rank, step)) continue;
      const std::vector<std::string> now = left_out(value, rank, step, micro);
      if (!first) first = now;
      if (is_static ? now != *first : !now.empty()) return true;
    }
  }
  return freezes;
}

// A fault that holds something back shows only if another thing is issued meanwhile; others show
// where the place exists.
bool comes_about(const Case& value, const FaultSpec& fault, const Settled& facts) {
  const std::string site = site_of(fault);
  if (site.empty()) {
    return true;
  }
  const std::optional<std::int64_t> step = first_step(value, fault.steps, 0);
  const bool maps = value.ddp.find_unused_parameters && !value.ddp.static_graph;
  const bool rebuilt = !maps && *step > (value.ddp.static_graph ? 1 : 0);
  const std::int64_t count = rebuilt ? facts.later_buckets : facts.first_buckets;
  if (fault.kind == "swap_collectives") {
    return site == "bucket" && fault.bucket && *fault.bucket + (maps ? 0 : 1) < count;
  }
  if (site == "bucket") return fault.bucket.value_or(0) < count;
  if (fault.bucket) return false;
  if (site == "used_map") return maps;
  if (site == "buffers") return facts.num_buffers > 0 && value.ddp.broadcast_buffers;
  const std::int64_t rebuild = value.ddp.static_graph ? 2 : 1;
  if (site == "rebuild_order" || site == "rebuild_sizes") {
    return !maps && covers(fault.steps, rebuild) && rebuild < value.train.steps;
  }
  const bool constructs =
      site == "param_count" || site == "param_shapes" || site == "module_states";
  return constructs && value.ddp.init_sync;
}

// Helpers: what a fault needs to have something to spoil.
bool is_needed(const Case& value, const AtSpec& at) {
  const bool loads =
      has_fault(value, "optimizer_not_loaded") || has_fault(value, "model_not_loaded");
  return (at.reload && loads && are_all(value, at.ranks)) ||
         (at.micro_batches && has_fault(value, "window_scale"));
}

bool site_exists(const Case& value, const AtSpec& at, const Settled& facts) {
  FaultSpec like;
  like.kind = "slow_link";
  like.ranks = at.ranks;
  like.steps = at.steps;
  like.site = at.site;
  like.bucket = at.bucket;
  return at.site.empty() || comes_about(value, like, facts);
}

// Routes of which the rules of broken scripts know: blocks that others stand beside.
bool routes_plainly(const Case& value) {
  return std::all_of(value.at.begin(), value.at.end(), [&](const AtSpec& at) {
    const bool is_other = at.is_routing() && at.skip.empty() && !at.micro_batches;
    return !is_other && !at.forward;
  });
}

// Ranks that train on, each by its own gradients.
bool trains_apart(const Case& value) {
  return value.world.ranks > 1 && reduces_in_backward(value.ddp) && hook_goes_local(value) &&
         value.train.sync_on != "never" && (value.ddp.hook == "noop" || value.train.steps > 1);
}

// Checked mode ends what LibTorch alone would go on with, wrongly or not.
bool is_ended_by_checks(const Case& value) {
  return value.ddp.checks != "off" && reduces_in_backward(value.ddp) &&
         value.train.sync_on != "never" &&
         (value.train.backwards_per_forward > 1 || overwrites_saved_buffers(value));
}

bool becomes_ready_twice(const Case& value) {
  return check_model(value.model, value.data).empty() && reentrant_is_ready_twice(Facts(value));
}

}  // namespace

bool has_mistake(const Case& value) {
  const bool has_event = std::any_of(value.at.begin(), value.at.end(),
                                     [&](const AtSpec& at) { return is_mistake(value, at); });
  return !value.faults.empty() || has_event || loses_gradients(value) || trains_apart(value) ||
         becomes_ready_twice(value) || is_ended_by_checks(value) || !all_meet(value) ||
         (is_dealt_unevenly(value) && (value.ddp.join == "off" || value.ddp.join == "throw"));
}

std::optional<ExpectSpec> predict_broken(const Case& value) {
  if (value.launch.is_asked_for()) {
    return predict_launch(value);
  }
  if (value.ddp.checks != "off") {
    return predict_checked(value);
  }
  if (std::optional<ExpectSpec> expect = predict_ready_twice(value)) {
    return expect;
  }
  const std::optional<Settled> facts = settle(value);
  if (!facts || !routes_plainly(value)) {
    return std::nullopt;
  }
  if (hook_goes_local(value)) {
    return predict_local_hook(value, *facts);
  }
  if (std::optional<ExpectSpec> expect = predict_apart(value, *facts)) {
    return expect;
  }
  const bool pair = value.faults.size() == 2 && has_fault(value, "per_rank_init") &&
                    has_fault(value, "no_initial_broadcast");
  const bool skips = any_event(value, [](const AtSpec& at) { return !at.skip.empty(); });
  std::vector<const AtSpec*> events;
  for (const AtSpec& at : value.at) {
    if (!at.is_routing() && !is_needed(value, at)) events.push_back(&at);
  }
  const std::size_t count = (pair ? 1 : value.faults.size()) + events.size() + (skips ? 1 : 0) +
                            (is_dealt_unevenly(value) ? 1 : 0);
  const bool all_come_about =
      std::all_of(value.faults.begin(), value.faults.end(),
                  [&](const FaultSpec& fault) { return comes_about(value, fault, *facts); }) &&
      std::all_of(events.begin(), events.end(),
                  [&](const AtSpec* at) { return site_exists(value, *at, *facts); });
  if (count != 1 || !all_come_about) {
    return std::nullopt;  // one thing at a time
  }
  const std::optional<Ends> ends = ends_of(value);
  if (!ends) {
    return std::nullopt;
  }
  if (!ends->all_well()) {
    return predict_ends(value, *ends);
  }
  const std::vector<std::string>& lost = ends->ranks.front().never_ready;
  if (!lost.empty() && value.faults.empty()) {
    return predict_drift(value, value.train.steps - 1, *facts, lost);
  }
  if (!value.faults.empty()) {
    const bool init_first = pair && value.faults.front().kind != "per_rank_init";
    return predict_fault(value, value.faults[init_first ? 1 : 0], *facts);
  }
  return events.empty() ? std::nullopt : predict_event(value, *events.front(), *facts);
}

}  // namespace lockstep::harness::fuzz
