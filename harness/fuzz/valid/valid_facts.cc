// SPDX-License-Identifier: Apache-2.0
// Walks the planned model: who gets a gradient, forward by forward.
#include "harness/fuzz/valid/valid_facts.h"

#include <algorithm>

#include "harness/fuzz/script_traits.h"
#include "harness/program.h"
#include "harness/step_parts.h"

namespace lockstep::harness::fuzz {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool is_reentrant(const BlockSpec& spec) { return spec.checkpoint == Checkpointing::kReentrant; }

}  // namespace

Facts::Facts(const Case& of)
    : value(of),
      plan(plan_model(of.model)),
      buffers(has_buffers(of)),
      sparse(has_sparse(of)),
      complex(!complex_parameters(of.model).empty()),
      reentrant(any(is_reentrant)),
      exchanges(has(BlockKind::kSyncBatchNorm) || has(BlockKind::kAllToAll)),
      share(of.train.batch_per_rank / of.train.micro_batches),
      forward(share / of.train.forwards_per_backward),
      reduces(reduces_in_backward(of.ddp)) {
  const TrainSpec& train = of.train;
  const bool all = train.sync_on == "every" || train.no_sync_covers == "backward";
  windows = !all && (train.micro_batches > 1 || train.sync_on == "never");
  local_passes = windows || any_event(value, [](const AtSpec& at) { return at.ascend > 0.0; });
  every = reduces_each_micro_batch(of);
  tracked_.assign(plan.slots.size(), false);
  for (const ParameterSlot& slot : plan.slots) {
    const auto tensor = static_cast<std::size_t>(slot.tensor);
    tracked_[tensor] = !plan.frozen[tensor];
  }
}

bool Facts::has(BlockKind kind) const {
  for (const auto& stage : plan.stages) {
    for (const std::int64_t block : stage) {
      if (plan.blocks[static_cast<std::size_t>(block)].spec.kind == kind) return true;
    }
  }
  return false;
}

bool Facts::any(bool (*holds)(const BlockSpec&)) const {
  for (const auto& stage : plan.stages) {
    for (const std::int64_t block : stage) {
      if (holds(plan.blocks[static_cast<std::size_t>(block)].spec)) return true;
    }
  }
  return false;
}

std::vector<bool> Facts::trained_by(const Route& route) const {
  const PlannedRoute planned = plan_route(plan, route);
  std::vector<bool> trained(plan.slots.size(), false);
  bool reaches = true;  // the stage behind hands a gradient back
  for (std::size_t i = planned.stages.size(); i-- > 0 && reaches;) {
    const std::vector<std::int64_t>& runs = planned.stages[i];
    const bool heads = i + 1 == plan.stages.size() && plan.stages[i].size() > 1;
    bool hands_back = runs.empty();
    for (const std::int64_t block : runs) {
      const PlannedBlock& planned_block = plan.blocks[static_cast<std::size_t>(block)];
      if (heads && contains(route.without_loss, planned_block.name)) continue;
      const BlockKind kind = planned_block.spec.kind;
      hands_back = hands_back || (kind != BlockKind::kDetach && kind != BlockKind::kOffset);
      for (const ParameterSlot& slot : plan.slots) {
        if (slot.block == block) trained[static_cast<std::size_t>(slot.tensor)] = true;
      }
    }
    reaches = hands_back;
  }
  for (std::size_t tensor = 0; tensor < trained.size(); ++tensor) {
    trained[tensor] = trained[tensor] && tracked_[tensor];
  }
  return trained;
}

std::vector<Place> Facts::places() const {
  const TrainSpec& train = value.train;
  std::vector<std::pair<Route, std::vector<bool>>> known;  // routes are few and recur
  const auto trained = [&](const Route& route) {
    for (const auto& [seen, tensors] : known) {
      if (seen == route) return tensors;
    }
    known.emplace_back(route, trained_by(route));
    return known.back().second;
  };
  std::vector<Place> places;
  for (std::int64_t step = 0; step < train.steps; ++step) {
    std::int64_t num_micro = train.micro_batches;
    for (const AtSpec& at : value.at) {
      if (at.micro_batches && covers(at.steps, step)) num_micro = *at.micro_batches;
    }
    for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
      for (std::int64_t micro = 0; micro < num_micro; ++micro) {
        for (std::int64_t forward_index = 0; forward_index < train.forwards_per_backward;
             ++forward_index) {
          Place place;
          place.rank = rank;
          place.step = step;
          place.micro = micro;
          place.forward = forward_index;
          place.syncs = !windows || (micro + 1 == num_micro && train.sync_on != "never");
          place.trained = trained(route_at(value, rank, step, micro, forward_index));
          places.push_back(std::move(place));
        }
      }
    }
  }
  return places;
}

}  // namespace lockstep::harness::fuzz
