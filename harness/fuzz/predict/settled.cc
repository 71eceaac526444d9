// SPDX-License-Identifier: Apache-2.0
// What a script must be like for the rules of broken ones to say how it ends.
#include "harness/fuzz/predict/settled.h"

#include <algorithm>
#include <numeric>

#include "harness/block_spec.h"
#include "harness/fault_kinds.h"
#include "harness/fuzz/script_traits.h"
#include "harness/model.h"
#include "harness/model_plan.h"
#include "harness/step_parts.h"

namespace lockstep::harness::fuzz {

namespace {

// Blocks in which no gradient is ever zero by chance.
bool is_lively(const ModelSpec& model) {
  const ModelPlan plan = plan_model(model);
  if (!plan.findings.empty() || !model.tied.empty()) {
    return false;
  }
  return std::all_of(plan.blocks.begin(), plan.blocks.end(), [&](const PlannedBlock& block) {
    const BlockSpec& spec = block.spec;
    const auto own = static_cast<std::size_t>(block.owner);
    const bool is_known = spec.kind == BlockKind::kLinear || spec.kind == BlockKind::kTanh ||
                          spec.kind == BlockKind::kIdentity || spec.kind == BlockKind::kScale ||
                          spec.kind == BlockKind::kBatchNorm ||
                          spec.kind == BlockKind::kSyncBatchNorm ||
                          spec.kind == BlockKind::kDropout;
    return is_known && plan.blocks[own].name == block.name &&
           spec.checkpoint == Checkpointing::kNone && spec.dtype.empty();
  });
}

// Every block is in one stage: what none names is never used.
bool all_blocks_run(const ModelSpec& model) {
  return model.kind == "mlp" ||
         std::all_of(model.blocks.begin(), model.blocks.end(),
                     [&](const auto& block) { return is_in_a_stage(model, block.first); });
}

bool trains_plainly(const Case& value) {
  const TrainSpec& train = value.train;
  const bool one_pass = train.forwards_per_backward == 1 && train.backwards_per_forward == 1 &&
                        train.backward_from == "sum" && train.sync_on == "last" &&
                        train.no_sync_covers == "both";
  const bool plain_loss =
      train.loss == "mse" && train.mean_over == "micro_batch" && !train.scale_loss_by_world_size;
  const bool clips = train.clip_norm != 0.0 && !has_fault(value, "clip_before_sync");
  return one_pass && plain_loss && !clips && train.agree == "never" &&
         (train.zero_grad == "none" || train.zero_grad == "zero") && train.optimizer.lr > 0.0;
}

// Ranks never see the same sample in one step, and every rank fills its batches.
bool deals_apart(const Case& value) {
  const DataSpec& data = value.data;
  return data.kind == "regression" && !data.exact && data.inputs.empty() && data.targets.empty() &&
         data.samples % value.world.ranks == 0 &&
         data.samples / value.world.ranks >= value.train.batch_per_rank;
}

bool synchronises_plainly(const Case& value) {
  const DdpSpec& ddp = value.ddp;
  const bool hooked = has_fault(value, "hook_raises") || has_fault(value, "hook_result");
  const bool clips = has_fault(value, "clip_before_sync");
  return (ddp.sync == "ddp" || (clips && !reduces_in_backward(ddp))) && ddp.checks == "off" &&
         (ddp.hook == "none" || (hooked && hook_averages(value)) || hook_goes_local(value));
}

bool runs_plainly(const Case& value) {
  const bool few = value.schedule.policy == "round_robin" || value.schedule.policy == "random" ||
                   value.schedule.policy == "pct";
  return value.world.check_tags && !value.launch.is_asked_for() && few;
}

// C2: a tensor is added first, and then the bucket is closed if it holds as much as the cap.
// Nothing where the count depends on the order of the tensors.
std::optional<std::int64_t> count_buckets(const std::vector<std::int64_t>& bytes,
                                          const DdpSpec& ddp) {
  const std::int64_t total = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
  const std::int64_t least = *std::min_element(bytes.begin(), bytes.end());
  const auto count = static_cast<std::int64_t>(bytes.size());
  if (ddp.first_bucket_cap_bytes >= total) {
    return 1;
  }
  if (ddp.first_bucket_cap_bytes > least) {
    return std::nullopt;
  }
  if (ddp.bucket_cap_bytes >= total) {
    return count > 1 ? 2 : 1;
  }
  return ddp.bucket_cap_bytes <= least ? std::optional(count) : std::nullopt;
}

}  // namespace

bool has_fault(const Case& value, const char* kind) {
  return std::any_of(value.faults.begin(), value.faults.end(),
                     [&](const FaultSpec& fault) { return fault.kind == kind; });
}

bool are_all(const Case& value, const std::vector<std::int64_t>& ranks) {
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    if (!covers(ranks, rank)) {
      return false;
    }
  }
  return true;
}

std::int64_t micro_batches_of(const Case& value, std::int64_t rank, std::int64_t step) {
  std::int64_t count = value.train.micro_batches;
  for (const AtSpec& at : value.at) {
    if (at.micro_batches && covers(at.ranks, rank) && covers(at.steps, step)) {
      count = *at.micro_batches;
    }
  }
  return count;
}

std::vector<std::string> left_out(const Case& value, std::int64_t rank, std::int64_t step,
                                  std::int64_t micro) {
  const ModelPlan plan = plan_model(value.model);
  std::vector<bool> has_gradient(plan.slots.size(), false);  // by tensor
  for (std::int64_t forward = 0; forward < value.train.forwards_per_backward; ++forward) {
    Route route = route_at(value, rank, step, micro, forward);
    route.skip.insert(route.skip.end(), route.without_loss.begin(), route.without_loss.end());
    const PlannedRoute planned = plan_route(plan, route);
    for (std::size_t block = 0; block < plan.blocks.size(); ++block) {
      for (const ParameterSlot& slot : plan.slots) {
        if (planned.blocks_run[block] && slot.block == plan.blocks[block].owner) {
          has_gradient[static_cast<std::size_t>(slot.tensor)] = true;
        }
      }
    }
  }
  std::vector<std::string> names;
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    const auto tensor = static_cast<std::size_t>(plan.slots[i].tensor);
    if (tensor == i && !has_gradient[tensor] && !plan.frozen[tensor]) {
      names.push_back(plan.slots[i].name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool settles_but_for_its_model(const Case& value) {
  return trains_plainly(value) && deals_apart(value) && synchronises_plainly(value) &&
         runs_plainly(value);
}

std::optional<Settled> settle(const Case& value) {
  if (!is_lively(value.model) || !all_blocks_run(value.model) ||
      !settles_but_for_its_model(value)) {
    return std::nullopt;
  }
  const ModelPlan plan = plan_model(value.model);
  Settled facts;
  std::vector<std::int64_t> bytes;
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    if (!plan.frozen[static_cast<std::size_t>(plan.slots[i].tensor)]) {
      facts.trained.push_back(plan.slots[i].name);
      bytes.push_back(numel_of(plan.slots[i].sizes) * (value.model.dtype == "float64" ? 8 : 4));
    }
  }
  if (facts.trained.empty()) {
    return std::nullopt;
  }
  const std::optional<std::int64_t> buckets = count_buckets(bytes, value.ddp);
  if (!buckets) {
    return std::nullopt;
  }
  const bool from_the_start = value.ddp.find_unused_parameters && !value.ddp.static_graph;
  facts.first_buckets = from_the_start ? *buckets : 1;
  facts.later_buckets = *buckets;
  facts.num_buffers = static_cast<std::int64_t>(buffer_names(value.model).size());
  facts.buffer_groups = facts.num_buffers > 0 ? 2 : 0;  // statistics, and a counter
  const bool normalises = uses_batch_norm(value.model) || uses_sync_batch_norm(value.model);
  if (normalises && value.train.batch_per_rank / value.train.micro_batches < 2) {
    return std::nullopt;
  }
  return facts;
}

}  // namespace lockstep::harness::fuzz
