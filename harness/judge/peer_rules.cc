// SPDX-License-Identifier: Apache-2.0
// One predicate per known difference.
#include "harness/judge/peer_rules.h"

#include <algorithm>

#include "harness/block_spec.h"
#include "harness/losses.h"
#include "harness/model.h"
#include "harness/model_plan.h"
#include "harness/step_parts.h"

namespace lockstep::harness {
namespace {

constexpr LibTorchVersion kAnyLater{1'000, 0};

bool any_event(const Case& value, bool (*holds)(const AtSpec&)) {
  return std::any_of(value.at.begin(), value.at.end(), holds);
}

bool any_block(const Case& value, bool (*holds)(const BlockSpec&)) {
  return std::any_of(value.model.blocks.begin(), value.model.blocks.end(),
                     [holds](const auto& block) { return holds(parse_block(block.second).spec); });
}

bool any_fault(const Case& value, const char* kind) {
  return std::any_of(value.faults.begin(), value.faults.end(),
                     [kind](const FaultSpec& fault) { return fault.kind == kind; });
}

bool joins(const Case& value) { return value.ddp.join != "off"; }

bool has_buffers(const Case& value) { return !buffer_names(value.model).empty(); }

// The used set of a rank may differ from step to step, or from micro-batch to micro-batch.
bool use_changes(const Case& value) {
  return any_event(value, [](const AtSpec& at) {
    return at.is_routing() || at.detach || !at.freeze.empty() || !at.unfreeze.empty();
  });
}

// Backwards that do not synchronise, in a step that does.
bool has_windows(const Case& value) {
  return value.train.micro_batches > 1 && value.train.sync_on != "every";
}

bool has_several_forwards(const Case& value) { return value.train.forwards_per_backward > 1; }

bool evaluates_through_wrapper(const AtSpec& at) {
  return at.evaluate > 0 && at.evaluate_through == "wrapper";
}

bool has_two_dtypes(const Case& value) {
  return any_block(value, [](const BlockSpec& block) { return !block.dtype.empty(); });
}

bool complex_parameter(const Case& value) { return !complex_parameters(value.model).empty(); }

bool unused_sparse(const Case& value) {
  return !sparse_parameters(value.model).empty() &&
         (use_changes(value) || value.ddp.find_unused_parameters || value.ddp.static_graph);
}

// The gradient of a sum is one tensor for all who were added.
bool shared_sparse(const Case& value) {
  return !sparse_parameters(value.model).empty() &&
         std::any_of(value.model.forward.begin(), value.model.forward.end(),
                     [](const std::vector<std::string>& stage) { return stage.size() > 1; });
}

bool joined_sparse(const Case& value) {
  return joins(value) && !sparse_parameters(value.model).empty();
}

bool leftover_buckets(const Case& value) {
  return has_two_dtypes(value) && !value.ddp.find_unused_parameters;
}

bool early_static_forwards(const Case& value) {
  return value.ddp.static_graph &&
         (has_several_forwards(value) || any_event(value, [](const AtSpec& at) {
            const bool no_backward = at.skip_step || at.retry;
            return (evaluates_through_wrapper(at) && at.evaluate_with_gradients) || at.detach ||
                   (no_backward && at.when == "after_forward");
          }));
}

// The hooks of an output's parameters run in the first iteration whether or not it is in the loss.
bool static_outputs(const Case& value) {
  return value.ddp.static_graph &&
         (any_event(value, [](const AtSpec& at) { return !at.without_loss.empty(); }) ||
          is_input_gradient(value.train.loss));
}

bool empty_tensors(const Case& value) {
  return any_block(value, [](const BlockSpec& block) {
    return block.kind == BlockKind::kLinear && block.out == 0;
  });
}

bool static_windows(const Case& value) {
  return value.ddp.static_graph &&
         (has_windows(value) || any_event(value, [](const AtSpec& at) { return at.ascend > 0.0; }));
}

bool joined_static(const Case& value) { return value.ddp.static_graph && joins(value); }

bool joined_use(const Case& value) {
  return value.ddp.find_unused_parameters && joins(value) && use_changes(value);
}

bool joined_plan(const Case& value) {
  return joins(value) && (has_several_forwards(value) || any_event(value, [](const AtSpec& at) {
                            return evaluates_through_wrapper(at) || at.skip_step || at.leave ||
                                   !at.raise.empty() || at.micro_batches.has_value();
                          }));
}

bool joined_windows(const Case& value) {
  return joins(value) && any_fault(value, "sync_before_last_micro_batch");
}

bool use_in_windows(const Case& value) {
  return value.ddp.find_unused_parameters && use_changes(value) &&
         (has_windows(value) || has_several_forwards(value));
}

bool local_buffers(const Case& value) {
  return has_buffers(value) &&
         (!value.ddp.broadcast_buffers || any_fault(value, "buffers_not_synced"));
}

// Buffers are broadcast before a forward whose predecessor synchronised (J4): between a forward and
// its backward, if another one comes between.
bool broadcast_before_backward(const Case& value) {
  return has_buffers(value) && value.ddp.broadcast_buffers &&
         (has_several_forwards(value) || any_event(value, [](const AtSpec& at) {
            return evaluates_through_wrapper(at) && at.when == "after_forward";
          }));
}

// Some forward runs no block with a parameter that is trained.
bool runs_without_parameters(const Case& value) {
  const ModelPlan plan = plan_model(value.model);
  const auto trains = [&](const Route& route) {
    const std::vector<bool> runs = plan_route(plan, route).blocks_run;
    return std::any_of(plan.slots.begin(), plan.slots.end(), [&](const ParameterSlot& slot) {
      return runs[static_cast<std::size_t>(slot.block)] &&
             !plan.frozen[static_cast<std::size_t>(slot.tensor)];
    });
  };
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    for (std::int64_t step = 0; step < value.train.steps; ++step) {
      for (std::int64_t micro = 0; micro < value.train.micro_batches; ++micro) {
        for (std::int64_t i = 0; i < value.train.forwards_per_backward; ++i) {
          if (!trains(route_at(value, rank, step, micro, i))) return true;
        }
      }
    }
  }
  return false;
}

bool rank_without_parameters(const Case& value) {
  const bool searches = value.ddp.find_unused_parameters || value.ddp.static_graph;
  const bool leaves_out =
      any_event(value, [](const AtSpec& at) { return !at.skip.empty() || !at.exit_after.empty(); });
  return any_event(value, [](const AtSpec& at) { return at.detach; }) ||
         (searches && leaves_out && runs_without_parameters(value));
}

bool output_is_parameter(const Case& value) {
  return any_block(value, [](const BlockSpec& block) { return block.kind == BlockKind::kOffset; });
}

bool other_model(const Case& value) {
  return any_fault(value, "other_dtype") || any_fault(value, "other_shape");
}

// Backwards whose gradients may be reset before they are reduced.
bool resets_what_it_used(const Case& value) {
  const TrainSpec& train = value.train;
  const bool has_local = train.backward_from == "each" || train.backwards_per_forward > 1 ||
                         any_event(value, [](const AtSpec& at) {
                           return at.skip_step || at.retry || at.bypass || at.ascend > 0.0;
                         });
  return value.ddp.find_unused_parameters && use_changes(value) && has_local;
}

struct Rule {
  bool (*applies)(const Case&);
  LibTorchVersion before;
  const char* why;
  LibTorchVersion since{0, 0};
};

const Rule kRules[] = {
    {complex_parameter, kAnyLater, "complex buckets go to the process group as they are"},
    {leftover_buckets, kAnyLater,
     "buckets of two dtypes that no cap closes are rebuilt in the order of a hash map"},
    {unused_sparse, kAnyLater, "a sparse parameter without gradient is an error"},
    {shared_sparse, kAnyLater, "rows of a sparse gradient are divided where others read them"},
    {joined_sparse, kAnyLater, "a joined rank has no zeros for a sparse bucket"},
    {early_static_forwards, {2, 1}, "the first iteration of a static graph is its first forward"},
    {static_outputs, kAnyLater,
     "a static graph takes what its first backward passes, not what gets a gradient"},
    {empty_tensors, kAnyLater, "a coalesced broadcast cannot split off tensors without elements"},
    {static_windows, kAnyLater, "a static graph does not go with no_sync"},
    {joined_static, kAnyLater, "a joined rank does not know when a static graph is recorded"},
    {joined_use, kAnyLater, "a joined rank sends its last used map again"},
    {joined_plan, kAnyLater, "a joined rank knows of no_sync only, and shadows every forward"},
    {joined_windows, kAnyLater, "a joined rank sends zeros as soon as one rank synchronises"},
    {use_in_windows, {2, 4}, "the used map ignores backwards that do not synchronise"},
    {resets_what_it_used,
     kAnyLater,
     "what a local backward used is missed where its gradient was reset",
     {2, 4}},
    {local_buffers, {2, 1}, "buffers are broadcast whatever broadcast_buffers says"},
    {broadcast_before_backward, kAnyLater, "a broadcast writes into buffers that backward reads"},
    {rank_without_parameters, kAnyLater, "a rank that uses no parameter launches nothing"},
    {output_is_parameter, kAnyLater, "a parameter that is an output counts as unused"},
    {other_model, kAnyLater, "ranks compare their models' sizes only"},
};

}  // namespace

std::string why_peer_may_differ(const Case& value, LibTorchVersion version) {
  for (const Rule& rule : kRules) {
    if (version < rule.before && !(version < rule.since) && rule.applies(value)) {
      return rule.why;
    }
  }
  return {};
}

}  // namespace lockstep::harness
