// SPDX-License-Identifier: Apache-2.0
// Rules of windows, backwards, losses and what is zeroed.
#include <algorithm>
#include <string>

#include "harness/fuzz/script_traits.h"
#include "harness/fuzz/valid/valid_rules.h"
#include "harness/model.h"
#include "harness/step_parts.h"

namespace lockstep::harness::fuzz {
namespace {

bool is_checkpointed(const BlockSpec& spec) { return spec.checkpoint != Checkpointing::kNone; }

bool has_peers(const Facts& facts) { return facts.value.world.ranks > 1; }

// A later backward over one forward, or from another forward, stays local; with checks it is an
// error. One rank alone notices where a reduction rounds or coalesces.
bool stays_local(const Facts& facts) {
  const TrainSpec& train = facts.value.train;
  const bool several = train.backward_from == "each" || train.backwards_per_forward > 1;
  return several && facts.reduces &&
         (has_peers(facts) || facts.value.ddp.checks != "off" || facts.value.ddp.static_graph ||
          facts.sparse || facts.value.ddp.hook != "none");
}

// A graph is kept for the next backward, and what was computed again is not.
bool recomputes_kept_graphs(const Facts& facts) {
  return facts.value.train.backwards_per_forward > 1 && facts.reentrant;
}

void mend_backwards(Case& value, Dice&) {
  value.train.backward_from = "sum";
  value.train.backwards_per_forward = 1;
}

// One rank alone may do without, where a reduction would have changed nothing: no rounding by a
// hook, no zeros in the place of what is unused, no rows added up.
bool never_syncs(const Facts& facts) {
  const TrainSpec& train = facts.value.train;
  if (train.sync_on != "never" || !facts.windows) return false;
  if (has_peers(facts) || facts.sparse || facts.value.ddp.hook != "none") return true;
  for (const Place& place : facts.places()) {
    if (place.trained != facts.tracked()) return true;
  }
  return any_event(facts.value, [](const AtSpec& at) { return !at.freeze.empty(); });
}

// The gradient of the output by the input leaves out what is added behind the last product, goes
// through no block that hides it, and not into tokens.
bool input_gradient_is_wrong(const Facts& facts) {
  if (facts.value.train.loss.find("input_gradient") == std::string::npos) return false;
  if (input_shape(facts.value.model, facts.value.data).kind == InputKind::kTokens) return true;
  if (facts.exchanges || facts.any(is_checkpointed) || facts.complex ||
      facts.has(BlockKind::kOffset) || facts.has(BlockKind::kDetach) ||
      facts.has(BlockKind::kBatchNorm) || facts.value.train.backwards_per_forward > 1) {
    return true;
  }
  return any_event(facts.value, [](const AtSpec& at) {
    return !at.skip.empty() || !at.exit_after.empty() || !at.mute.empty() ||
           !at.without_loss.empty() || at.samples.value_or(1) == 0 || !at.freeze.empty() ||
           at.detach;
  });
}

// Unanchored, only a graph that is counted tells what the loss reaches (L7). Of biases alone it
// reaches none, and no backward runs (F3).
bool needs_an_anchor(const Facts& facts) {
  return facts.value.train.loss == "input_gradient" && facts.reduces &&
         (!facts.value.ddp.static_graph || !facts.value.model.frozen.empty());
}

bool detaches_views(const Facts& facts) {
  return facts.value.train.zero_grad == "optimizer" && facts.value.ddp.gradient_as_bucket_view;
}

// A mean over the samples that an entry left: of none there is none.
bool mean_of_no_samples(const Facts& facts) {
  const TrainSpec& train = facts.value.train;
  const bool has_none =
      any_event(facts.value, [](const AtSpec& at) { return at.samples.value_or(1) == 0; });
  return has_none && train.reduction == "mean" && train.mean_over != "all";
}

bool no_rank_has_samples(const Facts& facts) {
  const Case& value = facts.value;
  if (!any_event(facts.value, [](const AtSpec& at) { return at.samples.value_or(1) == 0; }))
    return false;
  if (is_uneven(facts.value)) return true;
  for (std::int64_t step = 0; step < value.train.steps; ++step) {
    std::int64_t sum = 0;
    for (const Place& place : facts.places()) {
      sum += place.step == step ? samples_in(value, place.rank, step, place.micro) : 0;
    }
    if (sum == 0) return true;
  }
  return false;
}

void erase_samples(Case& value, Dice&) {
  value.at.erase(std::remove_if(value.at.begin(), value.at.end(),
                                [](const AtSpec& at) { return at.samples.has_value(); }),
                 value.at.end());
}

bool loses_saved_buffers(const Facts& facts) { return overwrites_saved_buffers(facts.value); }

bool agrees_inside_join(const Facts& facts) {
  return facts.value.train.agree != "never" && facts.value.ddp.join != "off";
}

}  // namespace

const std::vector<Rule>& training_rules() {
  static const std::vector<Rule> rules = {
      {"a later backward stays local (F9)", stays_local, mend_backwards},
      {"a re-entrant checkpoint over a kept graph", recomputes_kept_graphs, mend_backwards},
      {"ranks that never synchronise drift apart", never_syncs,
       [](Case& value, Dice&) { value.train.sync_on = "last"; }},
      {"a loss of input gradients that do not exist", input_gradient_is_wrong,
       [](Case& value, Dice&) { value.train.loss = "mse"; }},
      {"a loss of input gradients leaves a bias out", needs_an_anchor,
       [](Case& value, Dice&) { value.train.loss = "anchored_input_gradient"; }},
      {"Optimizer::zero_grad cannot detach views (M3)", detaches_views,
       [](Case& value, Dice& dice) {
         if (dice.chance(50)) {
           value.train.zero_grad = "zero";
         } else {
           value.ddp.gradient_as_bucket_view = false;
         }
       }},
      {"a mean over no sample", mean_of_no_samples,
       [](Case& value, Dice& dice) {
         if (value.train.forwards_per_backward == 1) {
           value.train.mean_over = "all";
         } else {
           erase_samples(value, dice);
         }
       }},
      {"no rank has a sample", no_rank_has_samples, erase_samples},
      {"a broadcast overwrites saved buffers (J6)", loses_saved_buffers,
       [](Case& value, Dice& dice) {
         if (dice.chance(50)) {
           value.ddp.broadcast_buffers = false;
         } else {
           value.train.forwards_per_backward = 1;
           value.train.backward_from = "sum";
         }
       }},
      {"joined ranks agree on nothing", agrees_inside_join,
       [](Case& value, Dice&) { value.train.agree = "never"; }},
  };
  return rules;
}

}  // namespace lockstep::harness::fuzz
