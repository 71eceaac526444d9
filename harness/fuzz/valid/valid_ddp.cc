// SPDX-License-Identifier: Apache-2.0
// Rules of DDP's options: unused parameters, static graphs, hooks, join.
#include <algorithm>
#include <string>

#include "harness/fuzz/script_traits.h"
#include "harness/fuzz/valid/valid_rules.h"
#include "harness/model.h"
#include "harness/program.h"
#include "harness/step_parts.h"

namespace lockstep::harness::fuzz {
namespace {

bool is_dynamic(const Facts& facts) {
  return facts.reduces && !facts.value.ddp.find_unused_parameters && !facts.value.ddp.static_graph;
}

bool both_searches(const Facts& facts) {
  return facts.value.ddp.find_unused_parameters && facts.value.ddp.static_graph;
}

// By tensor, over the forwards of one backward.
struct Backward {
  std::vector<bool> trained;       ///< by any forward
  std::vector<bool> trained_last;  ///< by the last one
  Place place;
};

std::vector<Backward> backwards(const Facts& facts) {
  std::vector<Backward> result;
  for (Place& place : facts.places()) {
    if (place.forward == 0) result.push_back({place.trained, {}, place});
    Backward& backward = result.back();
    for (std::size_t i = 0; i < place.trained.size(); ++i) {
      backward.trained[i] = backward.trained[i] || place.trained[i];
    }
    backward.trained_last = place.trained;
  }
  return result;
}

bool leaves_out(const Facts& facts, const std::vector<bool>& trained) {
  for (std::size_t i = 0; i < trained.size(); ++i) {
    if (facts.tracked()[i] && !trained[i]) return true;
  }
  return false;
}

// Without a search every bucket waits for every parameter (I9).
bool needs_a_search(const Facts& facts) {
  if (!is_dynamic(facts)) return false;
  const std::vector<Backward> all = backwards(facts);
  return std::any_of(all.begin(), all.end(), [&](const Backward& backward) {
    return backward.place.syncs && leaves_out(facts, backward.trained);
  });
}

// Checked mode looks at each forward before any backward.
bool needs_each_forward(const Facts& facts) {
  if (!is_dynamic(facts) || facts.value.ddp.checks != "full") return false;
  const std::vector<Place> all = facts.places();
  return std::any_of(all.begin(), all.end(), [&](const Place& place) {
    return place.syncs && leaves_out(facts, place.trained);
  });
}

bool erase_one_route(Case& value, Dice& dice) {
  std::vector<std::size_t> routes;
  for (std::size_t i = 0; i < value.at.size(); ++i) {
    const AtSpec& at = value.at[i];
    if (!at.skip.empty() || !at.exit_after.empty() || !at.without_loss.empty()) routes.push_back(i);
  }
  if (routes.empty()) return false;
  value.at.erase(value.at.begin() + static_cast<std::ptrdiff_t>(dice.one_of(routes)));
  return true;
}

void mend_search(Case& value, Dice& dice) {
  const std::int64_t choice = dice.below(10);
  if (choice < 2 && erase_one_route(value, dice)) return;
  value.ddp.static_graph = choice >= 7;
  value.ddp.find_unused_parameters = !value.ddp.static_graph;
}

// Behind an output that does not enter the loss hooks run all the same (E11).
std::vector<bool> reached_from(const Facts& facts, const Place& place) {
  Route route = route_at(facts.value, place.rank, place.step, place.micro, place.forward);
  route.without_loss.clear();
  return facts.trained_by(route);
}

bool last_forward_reaches_less(const Facts& facts) {
  std::vector<bool> reached;  // by the forwards of a backward so far
  for (const Place& place : facts.places()) {
    const std::vector<bool> now = reached_from(facts, place);
    if (place.forward == 0) reached.assign(now.size(), false);
    for (std::size_t i = 0; i < now.size(); ++i) reached[i] = reached[i] || now[i];
    const bool is_last = place.forward + 1 == facts.value.train.forwards_per_backward;
    if (is_last && place.syncs && reached != now) return true;
  }
  return false;
}

// What an earlier forward uses and the last does not is taken for unused, and then is ready (E13).
bool last_forward_uses_less(const Facts& facts) {
  if (!facts.value.ddp.find_unused_parameters || !facts.reduces) return false;
  if (facts.value.train.forwards_per_backward == 1) return false;
  if (any_event(facts.value, [](const AtSpec& at) { return !at.without_loss.empty(); }) &&
      last_forward_reaches_less(facts)) {
    return true;
  }
  const std::vector<Backward> all = backwards(facts);
  return std::any_of(all.begin(), all.end(), [](const Backward& backward) {
    return backward.place.syncs && backward.trained != backward.trained_last;
  });
}

// F9: while a first backward waits for what only a later one brings, the others are ready again;
// what a later one used and is frozen then counts as used in the next step, if a gradient is there.
bool later_backward_differs(const Facts& facts) {
  const TrainSpec& train = facts.value.train;
  const bool several = train.backward_from == "each" || train.backwards_per_forward > 1;
  if (!several || !facts.reduces) return false;
  const std::vector<Place> all = facts.places();
  const bool freezes = any_event(facts.value, [](const AtSpec& at) { return !at.freeze.empty(); });
  return (freezes && !clears_gradients(facts.value)) ||
         std::any_of(all.begin(), all.end(),
                     [&](const Place& place) { return place.trained != all.front().trained; });
}

// F3: no backward runs where the loss depends on nothing that is trained; a search helps only where
// all outputs are without.
bool loss_depends_on_nothing(const Facts& facts) {
  if (!any_event(facts.value, [](const AtSpec& at) { return !at.without_loss.empty(); })) {
    return false;
  }
  const std::vector<Place> all = facts.places();
  return std::any_of(all.begin(), all.end(), [](const Place& place) {
    return std::none_of(place.trained.begin(), place.trained.end(), [](bool is) { return is; });
  });
}

void mend_forwards(Case& value, Dice& dice) {
  if (!erase_one_route(value, dice)) value.train.forwards_per_backward = 1;
}

// L5: a rank that uses something else, or something more often, than when it was recorded.
bool static_graph_changes(const Facts& facts) {
  if (!facts.value.ddp.static_graph || !facts.reduces) return false;
  for (const AtSpec& at : facts.value.at) {
    if (!at.freeze.empty() || !at.unfreeze.empty()) return true;
    if (!at.is_routing() || at.samples || at.micro_batches || !at.mute.empty()) continue;
    if (!at.steps.empty() || at.micro_batch) return true;
  }
  return false;
}

void mend_static_graph(Case& value, Dice& dice) {
  if (dice.chance(60) || !erase_one_route(value, dice)) value.ddp.static_graph = false;
}

// It computes again only behind what requires a gradient.
bool reentrant_without_input(const Facts& facts) {
  if (!facts.reentrant) return false;
  bool requires_gradient = false;
  for (const auto& stage : facts.plan.stages) {
    bool behind = false;
    bool passes = false;
    for (const std::int64_t index : stage) {
      const auto& block = facts.plan.blocks[static_cast<std::size_t>(index)];
      if (block.spec.checkpoint == Checkpointing::kReentrant && !requires_gradient) return true;
      passes = passes ||
               (block.spec.kind != BlockKind::kDetach && block.spec.kind != BlockKind::kOffset);
      for (const ParameterSlot& slot : facts.plan.slots) {
        behind = behind ||
                 (slot.block == index && facts.tracked()[static_cast<std::size_t>(slot.tensor)]);
      }
    }
    requires_gradient = behind || (requires_gradient && passes);
  }
  return any_event(facts.value, [](const AtSpec& at) {
    return !at.skip.empty() || !at.exit_after.empty() || !at.freeze.empty();
  });
}

void mend_reentrant(Case& value, Dice&) {
  const std::string word = "checkpoint_reentrant";
  for (auto& [name, text] : value.model.blocks) {
    const auto at = text.find(word);
    if (at != std::string::npos) text.replace(at, word.size(), "checkpoint");
  }
}

// What belongs to our DDP alone, or to those that reduce inside backward.
bool sync_has_not(const Facts& facts) {
  const DdpSpec& ddp = facts.value.ddp;
  if (ddp.sync == "ddp") return false;
  if (ddp.checks != "off") return true;
  if (!facts.reduces && (ddp.join != "off" || facts.sparse)) return true;
  return ddp.hook != "none" &&
         (ddp.sync != "torch" || (ddp.hook != "all_reduce" && ddp.hook != "fp16_compress"));
}

void mend_sync(Case& value, Dice&) {
  value.ddp.checks = "off";
  value.ddp.hook = "none";
  if (value.ddp.sync != "torch") {
    value.ddp.join = "off";
    value.train.steps_of_rank.clear();
    for (auto& [name, text] : value.model.blocks) {
      const auto at = text.find(" sparse");
      if (at != std::string::npos) text.erase(at, 7);
    }
  }
}

bool nobody_synchronises(const Facts& facts) {
  return facts.value.ddp.sync == "none" && facts.value.world.ranks > 1;
}

bool gradients_go_local(const Facts& facts) {
  return facts.value.world.ranks > 1 && hook_goes_local(facts.value);
}

// A hook that takes tensors apart by rows or blocks takes no rows of a sparse one.
bool hook_takes_no_rows(const Facts& facts) {
  return (facts.sparse || facts.complex) && !hook_averages(facts.value) && !hook_casts(facts.value);
}

bool waits_for_joined(const Facts& facts) {
  return is_uneven(facts.value) &&
         (facts.value.ddp.join == "off" || facts.value.ddp.join == "throw");
}

void even_inputs(Case& value) {
  value.train.steps_of_rank.clear();
  value.at.erase(
      std::remove_if(value.at.begin(), value.at.end(), [](const AtSpec& at) { return at.leave; }),
      value.at.end());
}

// Some ranks leave blocks out that others use: once those have joined, nobody uses them.
bool is_used_by_some(const Case& value) {
  return any_event(value, [](const AtSpec& at) {
    return at.is_routing() && !at.ranks.empty() && at.mute.empty() && !at.samples &&
           !at.micro_batches;
  });
}

// O1, O8, L6, L11: a joined rank shadows one forward for each reduction, without statistics and
// exchanges; a static graph is recorded by all.
bool joined_ranks_cannot_follow(const Facts& facts) {
  if (facts.value.ddp.join == "off") return false;
  if (facts.value.train.forwards_per_backward > 1) return true;
  if (!is_uneven(facts.value)) return false;
  const std::vector<std::int64_t> steps = steps_by_rank(facts.value);
  const bool none = std::find(steps.begin(), steps.end(), 0) != steps.end();
  return facts.exchanges ||
         (facts.value.ddp.static_graph && (none || is_used_by_some(facts.value)));
}

void mend_join(Case& value, Dice& dice) {
  if (value.train.forwards_per_backward > 1 || dice.chance(50)) value.ddp.join = "off";
  even_inputs(value);
}

}  // namespace

// Ready in the nested backward, once for each use; a search does not see into it (K2).
bool reentrant_is_ready_twice(const Facts& facts) {
  if (!facts.reentrant || !facts.reduces) return false;
  if (facts.value.ddp.find_unused_parameters) return true;
  if (facts.value.ddp.static_graph) return false;
  if (facts.value.train.forwards_per_backward > 1) return true;
  for (const ParameterSlot& slot : facts.plan.slots) {
    if (slot.tensor != find_slots(facts.plan, slot.name).front()) return true;
  }
  return std::any_of(facts.plan.blocks.begin(), facts.plan.blocks.end(), [&](const auto& block) {
    return facts.plan.blocks[static_cast<std::size_t>(block.owner)].name != block.name;
  });
}

const std::vector<Rule>& ddp_rules() {
  static const std::vector<Rule> rules = {
      {"an option of another synchronisation", sync_has_not, mend_sync},
      {"ranks that do not synchronise drift apart", nobody_synchronises,
       [](Case& value, Dice&) { value.ddp.sync = "flat"; }},
      {"a static graph is searched by itself (L1)", both_searches,
       [](Case& value, Dice& dice) {
         (dice.chance(50) ? value.ddp.static_graph : value.ddp.find_unused_parameters) = false;
       }},
      {"a hook that leaves gradients local (N3)", gradients_go_local,
       [](Case& value, Dice&) { value.ddp.hook = "all_reduce"; }},
      {"a hook that takes no sparse or complex gradient", hook_takes_no_rows,
       [](Case& value, Dice&) { value.ddp.hook = "none"; }},
      {"ranks wait for those without inputs", waits_for_joined,
       [](Case& value, Dice&) { even_inputs(value); }},
      {"joined ranks cannot follow (O1, O8, L6, L11)", joined_ranks_cannot_follow, mend_join},
      {"a re-entrant checkpoint behind nothing that requires a gradient", reentrant_without_input,
       mend_reentrant},
      {"a re-entrant checkpoint is ready twice (F15)", reentrant_is_ready_twice,
       [](Case& value, Dice& dice) {
         if (dice.chance(50)) return mend_reentrant(value, dice);
         value.ddp.find_unused_parameters = false;
         value.ddp.static_graph = true;
       }},
      {"a static graph that changes (L5)", static_graph_changes, mend_static_graph},
      {"the last forward alone says what is unused (E13)", last_forward_uses_less, mend_forwards},
      {"a later backward over another graph (F9)", later_backward_differs,
       [](Case& value, Dice&) {
         value.train.backward_from = "sum";
         value.train.backwards_per_forward = 1;
       }},
      {"a loss that depends on nothing (F3)", loss_depends_on_nothing,
       [](Case& value, Dice& dice) { erase_one_route(value, dice); }},
      {"a parameter is left out without a search (I9)", needs_a_search, mend_search},
      {"a forward leaves out what another uses, and is checked", needs_each_forward,
       [](Case& value, Dice&) { value.ddp.checks = "fast"; }},
  };
  return rules;
}

}  // namespace lockstep::harness::fuzz
