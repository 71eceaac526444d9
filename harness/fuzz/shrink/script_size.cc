// SPDX-License-Identifier: Apache-2.0
// Counts what is in a script.
#include "harness/fuzz/shrink/script_size.h"

#include <numeric>

#include "harness/block_spec.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {

namespace {

// An activation is one word for all layers of an mlp, and a block each in a graph.
std::int64_t num_blocks(const ModelSpec& model) {
  const std::size_t count = model.kind == "mlp" ? model.widths.size() - 1 : model.blocks.size();
  return static_cast<std::int64_t>(count);
}

std::int64_t sum_of_sizes(const ModelSpec& model) {
  if (model.kind == "mlp") {
    return std::accumulate(model.widths.begin(), model.widths.end(), std::int64_t{0});
  }
  std::int64_t sum = 0;
  for (const auto& [name, text] : model.blocks) {
    const BlockSpec spec = parse_block(text).spec;
    sum += spec.in + spec.out + spec.kernel;
  }
  return sum;
}

std::int64_t weight_of(const ScheduleSpec& schedule) {
  return schedule.policy == "round_robin" ? 0 : schedule.policy == "replay" ? 1 : 2;
}

std::string text_of(Case value) {
  value.title.clear();
  value.expect = {};
  value.expect_sim.reset();
  value.expect_gloo.reset();
  value.expect_torch.clear();
  return print_case(value);
}

}  // namespace

Measure measure(const Case& value) {
  Measure result;
  result.text = text_of(value);
  result.counts = {value.world.ranks,
                   value.train.steps,
                   static_cast<std::int64_t>(value.at.size() + value.faults.size()),
                   num_blocks(value.model),
                   sum_of_sizes(value.model),
                   value.train.batch_per_rank,
                   value.train.micro_batches,
                   value.train.forwards_per_backward,
                   weight_of(value.schedule),
                   static_cast<std::int64_t>(result.text.size())};
  return result;
}

}  // namespace lockstep::harness::fuzz
