// SPDX-License-Identifier: Apache-2.0
// One predicate per fact.
#include "harness/fuzz/script_traits.h"

#include <algorithm>

#include "harness/block_spec.h"
#include "harness/model.h"
#include "harness/model_plan.h"
#include "harness/program.h"

namespace lockstep::harness::fuzz {

bool any_event(const Case& value, bool (*holds)(const AtSpec&)) {
  return std::any_of(value.at.begin(), value.at.end(), holds);
}

bool is_uneven(const Case& value) {
  const std::vector<std::int64_t> steps = steps_by_rank(value);
  return std::any_of(steps.begin(), steps.end(),
                     [&](std::int64_t count) { return count != steps.front(); });
}

bool is_in_a_stage(const ModelSpec& model, const std::string& block) {
  return model.forward.empty() ||
         std::any_of(model.forward.begin(), model.forward.end(), [&](const auto& stage) {
           return std::find(stage.begin(), stage.end(), block) != stage.end();
         });
}

bool is_plain(const Case& value) {
  const bool strange = any_event(value, [](const AtSpec& at) {
    return at.from_ms != 0 || !at.site.empty() || !at.raise.empty() || at.retry || at.stall ||
           at.skip_step || at.detach || !at.collective.empty() || at.evaluate_with_gradients ||
           at.add_buffer != 0 || at.bypass || at.copy_gradients || at.scale_buffers != 1.0 ||
           at.keep_gradients || at.ascend != 0.0;
  });
  return !strange && value.faults.empty() && !value.launch.is_asked_for() &&
         value.world.timeout_ms == 0;
}

bool use_varies(const Case& value) {
  return any_event(value, [](const AtSpec& at) {
    return !at.skip.empty() || !at.exit_after.empty() || !at.without_loss.empty() || at.detach ||
           at.bypass || !at.freeze.empty() || !at.unfreeze.empty();
  });
}

bool reduces_each_micro_batch(const Case& value) {
  return value.train.micro_batches > 1 &&
         (value.train.sync_on == "every" || value.train.no_sync_covers == "backward");
}

bool clears_gradients(const Case& value) {
  return (value.train.zero_grad == "none" || value.train.zero_grad == "zero") &&
         !any_event(value, [](const AtSpec& at) { return at.keep_gradients; });
}

bool one_backward_per_window(const Case& value) {
  return value.train.backwards_per_forward == 1 &&
         (value.train.backward_from == "sum" || value.train.forwards_per_backward == 1);
}

// What is exact in the model's type need not be in a smaller one.
bool sums_commute(const Case& value) {
  return value.world.ranks <= 2 || (value.data.exact && !hook_casts(value));
}

bool divides_by_power_of_two(const Case& value) {
  const std::int64_t ranks = value.world.ranks;
  return (ranks & (ranks - 1)) == 0 && (value.ddp.join != "divide_by_active" || ranks <= 2);
}

bool hook_averages(const Case& value) {
  const std::string& hook = value.ddp.hook;
  return hook == "none" || hook == "all_reduce" || hook == "all_reduce_copy";
}

bool hook_casts(const Case& value) {
  return value.ddp.hook == "fp16_compress" || value.ddp.hook == "bf16_compress";
}

bool hook_goes_local(const Case& value) {
  return value.ddp.hook == "noop" || value.ddp.hook == "post_local_sgd";
}

bool hook_is_elementwise(const Case& value) {
  return hook_averages(value) || hook_casts(value) || value.ddp.hook == "noop";
}

bool has_buffers(const Case& value) { return !buffer_names(value.model).empty(); }

bool rounds_by_sink(const Case& value) {
  return !value.data.exact && plan_model(value.model).stages.back().size() > 2;
}

bool overwrites_saved_buffers(const Case& value) {
  return value.train.forwards_per_backward > 1 && value.ddp.broadcast_buffers &&
         value.world.ranks > 1 && uses_batch_norm(value.model);
}

bool has_sparse(const Case& value) { return !sparse_parameters(value.model).empty(); }

bool has_other_dtypes(const Case& value) {
  return std::any_of(value.model.blocks.begin(), value.model.blocks.end(), [](const auto& block) {
    return !parse_block(block.second).spec.dtype.empty();
  });
}

std::vector<std::int64_t> first_steps_of_wrappers(const Case& value) {
  std::vector<std::int64_t> first = {0};
  for (std::int64_t step = 0; step < value.train.steps; ++step) {
    const bool reloads = std::any_of(value.at.begin(), value.at.end(), [step](const AtSpec& at) {
      return at.reload && covers(at.steps, step);
    });
    if (reloads && step > 0) {
      first.push_back(step);
    }
  }
  return first;
}

}  // namespace lockstep::harness::fuzz
