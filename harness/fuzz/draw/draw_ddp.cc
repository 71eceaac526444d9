// SPDX-License-Identifier: Apache-2.0
// Draws the options of DDP, and schedules.
#include <algorithm>
#include <string>
#include <vector>

#include "harness/fuzz/draw/draw_topics.h"
#include "harness/fuzz/valid/valid_facts.h"

namespace lockstep::harness::fuzz {
namespace {

std::int64_t bytes_of(const ModelPlan& plan, const ParameterSlot& slot, const std::string& dtype) {
  const std::string& own = plan.blocks[static_cast<std::size_t>(slot.block)].spec.dtype;
  const bool is_wide = (own.empty() ? dtype : own) != "float32";
  return numel_of(slot.sizes) * (is_wide ? 8 : 4);
}

// What some neighbours in the order of registration take together, and a byte more or less: a cap
// closes a bucket with the parameter that reaches it (C2).
std::int64_t some_cap(const Case& value, std::int64_t otherwise, Dice& dice) {
  const std::int64_t choice = dice.below(10);
  if (choice < 2) return otherwise;
  if (choice < 4) return 1;
  const ModelPlan plan = plan_model(value.model);
  std::vector<std::int64_t> bytes;
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    const ParameterSlot& slot = plan.slots[i];
    const auto tensor = static_cast<std::size_t>(slot.tensor);
    if (tensor == i && !plan.frozen[tensor]) {
      bytes.push_back(bytes_of(plan, slot, value.model.dtype));
    }
  }
  if (bytes.empty()) return otherwise;
  const auto count = static_cast<std::int64_t>(bytes.size());
  const std::int64_t first = dice.below(count);
  const std::int64_t last = dice.between(first, count - 1);
  std::int64_t sum = dice.between(-1, 1);
  for (std::int64_t i = first; i <= last; ++i) sum += bytes[static_cast<std::size_t>(i)];
  return std::max<std::int64_t>(1, sum);
}

void draw_join(Case& value, Dice& dice) {
  TrainSpec& train = value.train;
  train.steps_of_rank.clear();
  value.ddp.join = "off";
  if (!dice.chance(35)) return;
  value.ddp.join = dice.one_of(
      {"divide_by_initial", "divide_by_active", "divide_by_initial", "divide_by_active", "throw"});
  if (value.ddp.join == "throw" || dice.chance(10)) return;
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    train.steps_of_rank.push_back(dice.between(dice.chance(30) ? 0 : 1, train.steps));
  }
  train.steps_of_rank[static_cast<std::size_t>(dice.below(value.world.ranks))] = train.steps;
}

}  // namespace

void draw_ddp(Case& value, const Space& space, Dice& dice) {
  DdpSpec& ddp = value.ddp;
  ddp = DdpSpec();
  ddp.sync = space.sync;
  ddp.first_bucket_cap_bytes = some_cap(value, ddp.first_bucket_cap_bytes, dice);
  ddp.bucket_cap_bytes = some_cap(value, ddp.bucket_cap_bytes, dice);
  ddp.gradient_as_bucket_view = dice.chance(50);
  const std::int64_t search = dice.below(10);
  ddp.find_unused_parameters = search < 4;
  ddp.static_graph = search >= 4 && search < 7;
  ddp.broadcast_buffers = !dice.chance(30);
  ddp.init_sync = !dice.chance(20);
  if (dice.chance(30)) {
    ddp.hook = dice.one_of({"all_reduce", "all_reduce", "all_reduce_copy", "fp16_compress",
                            "bf16_compress", "quantize_per_tensor", "quantize_per_channel",
                            "power_sgd", "noop", "post_local_sgd"});
  }
  ddp.checks = dice.chance(25) ? dice.one_of({"fast", "full"}) : "off";
  draw_join(value, dice);
}

void draw_schedule(Case& value, const Space& space, Dice& dice) {
  ScheduleSpec& schedule = value.schedule;
  schedule = ScheduleSpec();
  if (space.backend != "sim") return;
  schedule.policy =
      dice.one_of({"round_robin", "round_robin", "random", "random", "pct", "pct", "exhaustive"});
  if (schedule.policy == "exhaustive") return;  // make_valid has a look at its size
  if (schedule.policy == "round_robin") return;
  schedule.runs = dice.chance(85) ? 1 : dice.between(2, 3);
  if (schedule.policy == "pct") schedule.depth = dice.between(1, 5);
  if (dice.chance(20)) schedule.first_step = dice.below(value.train.steps);
}

}  // namespace lockstep::harness::fuzz
