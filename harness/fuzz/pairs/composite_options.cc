// SPDX-License-Identifier: Apache-2.0
// Options of a case that are no single key: what its model, its script and its mistakes hold.
#include "harness/fuzz/pairs/composite_options.h"

#include <algorithm>
#include <iterator>

#include "core/check.h"
#include "harness/at_actions.h"
#include "harness/block_spec.h"
#include "harness/fuzz/script_traits.h"
#include "harness/scenario/names.h"

namespace lockstep::harness::fuzz {

namespace {

using Spec = const BlockSpec&;
using At = const AtSpec&;
using SetAt = AtSpec&;

/// A chain of this block between two others, or in the place of the first.
struct Chain {
  const char* stem = "linear 3 4";
  const char* extra = "tanh";
  const char* head = "linear 4 2";
};

void put_chain(Case& value, const Chain& chain) {
  value.model.kind = "graph";
  value.model.blocks = {{"stem", chain.stem}, {"extra", chain.extra}, {"head", chain.head}};
  value.model.forward.clear();
  value.model.frozen.clear();
  value.model.tied.clear();
}

/// A block of the model that is not its last.
std::string some_block(const Case& value) {
  return value.model.blocks.empty() ? "layer0" : value.model.blocks.front().first;
}

/// One that may be left out, if there is such a one.
std::string spare_block(const Case& value) {
  const auto& stages = value.model.forward;
  const auto wide = std::find_if(stages.begin(), stages.end(),
                                 [](const auto& stage) { return stage.size() > 1; });
  if (wide != stages.end()) return wide->back();
  return value.model.blocks.size() < 3 ? "act0" : value.model.blocks[1].first;
}

}  // namespace

Option block_options() {
  Option option{"block", {}};
  const auto kind = [&](const char* name, bool (*holds)(Spec), const Chain& chain) {
    const auto has = [holds](const Case& value) {
      return std::any_of(value.model.blocks.begin(), value.model.blocks.end(),
                         [&](const auto& block) { return holds(parse_block(block.second).spec); });
    };
    option.values.push_back({name, has, [chain](Case& value) { put_chain(value, chain); }});
  };
  const auto inner = [](const char* text) {
    Chain chain;
    chain.extra = text;
    return chain;
  };
  kind("linear", [](Spec b) { return b.kind == BlockKind::kLinear; }, {});
  kind(
      "no_bias", [](Spec b) { return !b.bias; }, inner("linear 4 4 no_bias"));
  kind(
      "relu", [](Spec b) { return b.kind == BlockKind::kRelu; }, inner("relu"));
  kind(
      "tanh", [](Spec b) { return b.kind == BlockKind::kTanh; }, inner("tanh"));
  kind(
      "identity", [](Spec b) { return b.kind == BlockKind::kIdentity; }, inner("identity"));
  kind(
      "detach", [](Spec b) { return b.kind == BlockKind::kDetach; }, inner("detach"));
  kind(
      "batch_norm", [](Spec b) { return b.kind == BlockKind::kBatchNorm; }, inner("batch_norm 4"));
  kind(
      "sync_batch_norm", [](Spec b) { return b.kind == BlockKind::kSyncBatchNorm; },
      inner("sync_batch_norm 4"));
  kind(
      "layer_norm", [](Spec b) { return b.kind == BlockKind::kLayerNorm; }, inner("layer_norm 4"));
  kind(
      "dropout", [](Spec b) { return b.kind == BlockKind::kDropout; }, inner("dropout 0.5"));
  kind("embedding", [](Spec b) { return b.kind == BlockKind::kEmbedding && !b.sparse; },
       {"embedding 8 4", "tanh", "linear 4 2"});
  kind("sparse", [](Spec b) { return b.sparse; }, {"embedding 8 4 sparse", "tanh", "linear 4 2"});
  kind("conv2d", [](Spec b) { return b.kind == BlockKind::kConv2d; },
       {"conv2d 1 1 3", "flatten", "linear 16 2"});
  kind(
      "scale", [](Spec b) { return b.kind == BlockKind::kScale; }, inner("scale 4"));
  kind(
      "offset", [](Spec b) { return b.kind == BlockKind::kOffset; }, inner("offset 4"));
  kind(
      "gain", [](Spec b) { return b.kind == BlockKind::kGain; }, inner("gain 4"));
  kind("same", [](Spec b) { return b.kind == BlockKind::kSame; },
       {"linear 4 4", "same stem", "linear 4 2"});
  kind(
      "all_to_all", [](Spec b) { return b.kind == BlockKind::kAllToAll; }, inner("all_to_all"));
  kind(
      "checkpoint", [](Spec b) { return b.checkpoint == Checkpointing::kPlain; },
      inner("linear 4 4 checkpoint"));
  kind(
      "checkpoint_reentrant", [](Spec b) { return b.checkpoint == Checkpointing::kReentrant; },
      inner("linear 4 4 checkpoint_reentrant"));
  kind(
      "float64", [](Spec b) { return b.dtype == "float64"; }, inner("linear 4 4 float64"));
  kind("complex64", [](Spec b) { return b.dtype == "complex64"; },
       {"linear 3 4", "linear 4 4 complex64", "linear 8 2"});
  return option;
}

Option tie_options() {
  return {"parameters",
          {{"frozen", [](const Case& value) { return !value.model.frozen.empty(); },
            [](Case& value) { value.model.frozen = {some_block(value)}; }},
           {"tied", [](const Case& value) { return !value.model.tied.empty(); },
            [](Case& value) {
              put_chain(value, {"linear 4 4", "linear 4 4", "linear 4 2"});
              value.model.tied = {{"stem.weight", "extra.weight"}};
            }},
           {"several_heads",
            [](const Case& value) {
              return !value.model.forward.empty() && value.model.forward.back().size() > 1;
            },
            [](Case& value) {
              put_chain(value, {"linear 3 4", "linear 4 2", "linear 4 2"});
              value.model.forward = {{"stem"}, {"extra", "head"}};
            }}}};
}

Option join_options() {
  const auto is_uneven = [](const Case& value) {
    return std::any_of(value.train.steps_of_rank.begin(), value.train.steps_of_rank.end(),
                       [&](std::int64_t steps) { return steps != value.train.steps; });
  };
  Option option{"inputs",
                {{"even", [=](const Case& value) { return !is_uneven(value); },
                  [](Case& value) { value.train.steps_of_rank.clear(); }}}};
  for (const std::string join : {"off", "divide_by_initial", "divide_by_active", "throw"}) {
    option.values.push_back(
        {"uneven, join " + join,
         [=](const Case& value) { return is_uneven(value) && value.ddp.join == join; },
         [join](Case& value) {
           const auto num_ranks = static_cast<std::size_t>(value.world.ranks);
           value.train.steps = std::max<std::int64_t>(2, value.train.steps);
           value.train.steps_of_rank.assign(num_ranks, value.train.steps);
           value.train.steps_of_rank.back() = 1;
           value.ddp.join = join;
         }});
  }
  return option;
}

Option event_options() {
  Option option{"event", {}};
  // In step 0; of the last rank, or of all where the references follow only then.
  enum Who { kOne, kAll };
  using Value = const Case&;
  const auto event_if = [&](const char* name, Who who, bool (*is)(At), void (*set)(SetAt, Value)) {
    const auto has = [is](const Case& value) { return any_event(value, is); };
    option.values.push_back({name, has, [who, set](Case& value) {
                               AtSpec at;
                               if (who == kOne) at.ranks = {value.world.ranks - 1};
                               at.steps = {0};
                               set(at, value);
                               value.at.push_back(at);
                             }});
  };
  const auto event = [&](const std::string& name, Who who, void (*set)(SetAt, Value)) {
    const auto* const action = std::find_if(std::begin(kAtActions), std::end(kAtActions),
                                            [&](const AtAction& it) { return it.name == name; });
    LOCKSTEP_CHECK(action != std::end(kAtActions), "no action of [[at]] is called {}", name);
    event_if(action->name, who, action->is_set, set);
  };
  event("skip", kOne, [](SetAt a, Value v) { a.skip = {spare_block(v)}; });
  event("exit_after", kOne, [](SetAt a, Value v) { a.exit_after = some_block(v); });
  event("without_loss", kOne, [](SetAt a, Value v) {
    a.without_loss = {v.model.blocks.empty() ? "layer1" : v.model.blocks.back().first};
  });
  event("mute", kOne, [](SetAt a, Value v) { a.mute = {spare_block(v)}; });
  event("samples", kOne, [](SetAt a, Value) { a.samples = 1; });
  event("micro_batches", kAll, [](SetAt a, Value) { a.micro_batches = 1; });
  event("freeze", kAll, [](SetAt a, Value v) { a.freeze = {some_block(v)}; });
  event("unfreeze", kAll, [](SetAt a, Value v) { a.unfreeze = {some_block(v)}; });
  event("lr", kAll, [](SetAt a, Value) { a.lr = 0.0625; });
  event_if(
      "raise", kOne, [](At a) { return !a.raise.empty() && !a.retry; },
      [](SetAt a, Value) { a.raise = "planted"; });
  event_if(
      "retry", kAll, [](At a) { return a.retry; },
      [](SetAt a, Value) {
        a.raise = "planted";
        a.retry = true;
      });
  event("stall", kOne, [](SetAt a, Value) { a.stall = true; });
  event("leave", kOne, [](SetAt a, Value) { a.leave = true; });
  event("skip_step", kOne, [](SetAt a, Value) { a.skip_step = true; });
  event("detach", kOne, [](SetAt a, Value) { a.detach = true; });
  event("sleep_ms", kOne, [](SetAt a, Value) { a.sleep_ms = 5; });
  event("collective", kAll, [](SetAt a, Value) { a.collective = "all_reduce"; });
  event("evaluate", kAll, [](SetAt a, Value) { a.evaluate = 1; });
  event("reload", kAll, [](SetAt a, Value) { a.reload = true; });
  event("add_buffer", kAll, [](SetAt a, Value) { a.add_buffer = 2; });
  event("bypass", kOne, [](SetAt a, Value) { a.bypass = true; });
  event("copy_gradients", kAll, [](SetAt a, Value) {
    a.when = "after_backward";
    a.copy_gradients = true;
  });
  event("sync_buffers", kAll, [](SetAt a, Value) { a.sync_buffers = "broadcast"; });
  event("scale_buffers", kOne, [](SetAt a, Value) { a.scale_buffers = 2.0; });
  event("keep_gradients", kAll, [](SetAt a, Value) { a.keep_gradients = true; });
  event("ascend", kAll, [](SetAt a, Value) { a.ascend = 0.25; });
  return option;
}

Option fault_options() {
  Option option{"fault", {}};
  for (const std::string& kind : names_of(fault_kinds())) {
    const auto has = [kind](const Case& value) {
      return std::any_of(value.faults.begin(), value.faults.end(),
                         [&](const FaultSpec& fault) { return fault.kind == kind; });
    };
    option.values.push_back({kind, has, [kind](Case& value) {
                               FaultSpec fault;
                               fault.kind = kind;
                               fault.ranks = {value.world.ranks - 1};
                               value.faults.push_back(fault);
                             }});
  }
  return option;
}

}  // namespace lockstep::harness::fuzz
