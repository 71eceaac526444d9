// SPDX-License-Identifier: Apache-2.0
// Plants faults, each with what it needs to be seen.
#include <algorithm>

#include "harness/fault_kinds.h"
#include "harness/fuzz/break/break_draws.h"
#include "harness/model.h"

namespace lockstep::harness::fuzz {

namespace {

// Batches that a batch_norm can take.
void give_batches_of_two(Case& value) {
  value.train.batch_per_rank = 2 * value.train.micro_batches;
  value.data.samples = value.world.ranks * value.train.batch_per_rank * value.train.steps;
}

void give_hook(Case& value) {
  value.ddp.hook = any_of<std::string>({"all_reduce", "all_reduce_copy"});
}

AtSpec event_at(std::int64_t step) {
  AtSpec at;
  at.steps = {step};
  return at;
}

void give_reload(Case& value) {
  value.train.steps = std::max<std::int64_t>(value.train.steps, 2);
  AtSpec at = event_at(any_step(value, 1));
  at.reload = true;
  value.at.push_back(at);
  value.ddp.init_sync = !one_in(2);
  value.train.optimizer_before_wrapping = false;
}

void give_short_window(Case& value) {
  value.train.micro_batches = number(2, 3);
  value.train.batch_per_rank = value.train.micro_batches * number(1, 2);
  value.data.samples = value.world.ranks * value.train.batch_per_rank * value.train.steps;
  value.train.reduction = "mean";
  AtSpec at = event_at(any_step(value));
  at.micro_batches = number(1, value.train.micro_batches - 1);
  value.at.push_back(at);
}

void give_join(Case& value) {
  value.world.ranks = std::max<std::int64_t>(value.world.ranks, 2);
  value.ddp.static_graph = false;
  value.ddp.join = any_of<std::string>({"divide_by_initial", "divide_by_active"});
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    value.train.steps_of_rank.push_back(number(0, value.train.steps));
  }
  value.train.steps_of_rank[static_cast<std::size_t>(number(0, value.world.ranks - 1))] =
      value.train.steps;
  value.data.samples = value.world.ranks * value.train.batch_per_rank * value.train.steps;
}

void give_clipping(Case& value) {
  value.ddp = {};
  value.ddp.sync = any_of<std::string>({"per_parameter", "flat"});
  value.train.clip_norm = 0.001;
}

void give_second_epoch(Case& value) {
  value.train.steps = number(2, 4);
  value.train.batch_per_rank = value.train.micro_batches * number(1, 2);
  // More samples than an epoch uses, so that the second sees others.
  const std::int64_t per_rank = value.train.batch_per_rank * number(1, value.train.steps - 1);
  value.data.samples = value.world.ranks * (per_rank + number(0, value.train.batch_per_rank - 1));
  value.data.shuffle = true;
}

void give_dropout(Case& value) {
  value.model = {};
  value.model.kind = "graph";
  value.model.blocks = {{"a", "linear 3 32"}, {"drop", "dropout 0.5"}, {"b", "linear 32 2"}};
}

void give_sync_batch_norm(Case& value) {
  value.model = normalised_model();
  value.model.blocks[1].second = "sync_" + value.model.blocks[1].second;
  value.train.micro_batches = 1;
  value.ddp.static_graph = false;
  give_batches_of_two(value);
}

void give_need(Case& value, FaultKind::Needs needs) {
  switch (needs) {
    case FaultKind::Needs::kNothing:
      break;
    case FaultKind::Needs::kReload:
      return give_reload(value);
    case FaultKind::Needs::kShortWindow:
      return give_short_window(value);
    case FaultKind::Needs::kDropout:
      return give_dropout(value);
    case FaultKind::Needs::kShuffle:
      value.data.shuffle = true;
      break;
    case FaultKind::Needs::kSecondEpoch:
      return give_second_epoch(value);
    case FaultKind::Needs::kHook:
      return give_hook(value);
    case FaultKind::Needs::kBuffers:
      value.model = normalised_model();
      value.train.steps = std::max<std::int64_t>(value.train.steps, 2);
      return give_batches_of_two(value);
    case FaultKind::Needs::kSyncBatchNorm:
      return give_sync_batch_norm(value);
    case FaultKind::Needs::kJoin:
      return give_join(value);
    case FaultKind::Needs::kClipping:
      return give_clipping(value);
    case FaultKind::Needs::kMicroBatches:
      value.train.micro_batches = number(2, 3);
      value.train.batch_per_rank = value.train.micro_batches * number(1, 2);
      value.data.samples = value.world.ranks * value.train.batch_per_rank * value.train.steps;
      break;
    case FaultKind::Needs::kTimeout:
      value.world.timeout_ms = 1000;
      break;
    case FaultKind::Needs::kSimulator:
      value.world.simulator_only = true;
      break;
  }
}

// A site that is come to, sometimes another than the buckets.
void give_site(Case& value, FaultSpec& fault) {
  const bool makes_up = fault.kind == "skip_wait" || fault.kind == "skip_collective" ||
                        fault.kind == "corrupt_payload" || fault.kind == "swap_collectives";
  const std::int64_t which = makes_up ? 0 : number(0, 6);
  if (which == 5 && !value.ddp.find_unused_parameters) {
    fault.site = any_of<std::string>({"rebuild_order", "rebuild_sizes"});
    fault.steps.clear();
  } else if (which == 6) {
    fault.site = any_of<std::string>({"param_count", "param_shapes", "module_states"});
    fault.steps.clear();
  } else if (which == 4 && value.ddp.find_unused_parameters) {
    fault.site = "used_map";
  } else if (which == 3) {
    value.model = normalised_model();
    give_batches_of_two(value);
    fault.site = "buffers";
  } else if (one_in(2) || fault.kind == "swap_collectives") {
    fault.bucket = number(0, 1);
  }
}

void give_details(Case& value, FaultSpec& fault, const FaultKind& kind) {
  const std::vector<std::string> parameters = parameter_names(value.model);
  const bool needed = kind.parameter == FaultKind::Parameter::kNeeded;
  if (needed || (kind.parameter == FaultKind::Parameter::kOptional && one_in(2))) {
    fault.parameter = any_of(parameters);
  }
  if (kind.happens_to_collective()) {
    give_site(value, fault);
  }
  if (kind.happens == FaultKind::Happens::kProcess) {
    if (!fault.ranks.empty()) fault.ranks.resize(1);
    if (one_in(2)) fault.bucket = number(0, 1);
  }
  if (fault.kind == "slow_link") {
    fault.delay_ms = number(1, 5);
  }
  if (fault.kind == "replaced_parameter") {
    fault.by = any_of<std::string>({"copy", "round_trip"});
    value.ddp.static_graph = false;
  }
}

}  // namespace

void plant_fault(Case& value, const std::string& name) {
  const FaultKind& kind = *find_fault_kind(name);
  if (name == "mixed_steps" || name == "stale_gradient") {
    value.train.steps = std::max<std::int64_t>(value.train.steps, 2);
  }
  give_need(value, kind.needs);
  FaultSpec fault;
  fault.kind = name;
  if (kind.has_ranks) {
    fault.ranks =
        kind.happens == FaultKind::Happens::kProcess ? some_ranks(value) : any_ranks(value);
  }
  if (kind.has_steps() && !one_in(3)) {
    fault.steps = {any_step(value, name == "mixed_steps" || name == "stale_gradient" ? 1 : 0)};
  }
  if (name == "window_scale") {
    fault.steps.clear();
  }
  if (name == "no_initial_broadcast") {
    FaultSpec own;
    own.kind = "per_rank_init";
    own.ranks = any_ranks(value);
    value.faults.push_back(own);
  }
  give_details(value, fault, kind);
  value.faults.push_back(fault);
}

}  // namespace lockstep::harness::fuzz
