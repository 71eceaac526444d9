// SPDX-License-Identifier: Apache-2.0
// Rules of entries of [[at]]: which of them DDP follows, and the references with it.
#include <algorithm>
#include <string>
#include <vector>

#include "harness/case_facts.h"
#include "harness/fuzz/script_traits.h"
#include "harness/fuzz/valid/valid_rules.h"
#include "harness/model.h"
#include "harness/step_parts.h"

namespace lockstep::harness::fuzz {
namespace {

bool is_before_window(const AtSpec& at) {
  return at.when == "before_forward" && at.micro_batch.value_or(0) == 0;
}

bool leaves_blocks_out(const AtSpec& at) {
  return !at.skip.empty() || !at.exit_after.empty() || !at.without_loss.empty();
}

bool retries(const AtSpec& at) { return at.retry; }

bool skips(const AtSpec& at) { return at.skip_step; }

const char* why_route_is_wrong(const Facts& facts, const AtSpec& at) {
  const TrainSpec& train = facts.value.train;
  if (facts.exchanges && leaves_blocks_out(at) && !at.ranks.empty()) {
    return "ranks on different routes meet in a block's own exchange (O8)";
  }
  if (at.samples) {
    if (*at.samples > facts.share || *at.samples % train.forwards_per_backward != 0) {
      return "more samples than there are";
    }
    if (facts.has(BlockKind::kAllToAll)) return "an exchange of uneven chunks";
    const bool norms = facts.has(BlockKind::kBatchNorm) || facts.has(BlockKind::kSyncBatchNorm);
    if (norms && *at.samples < 2 * train.forwards_per_backward) return "statistics of one sample";
  }
  if (at.micro_batches && !at.ranks.empty()) return "windows of different lengths (O9)";
  if (at.micro_batches && *at.micro_batches > train.micro_batches) return "a longer window";
  return nullptr;
}

// Only what ranks know at the place where they tell each other can be agreed on, and nothing may
// lie between that one issues and another does not.
const char* why_agreement_fails(const Facts& facts, const AtSpec& at) {
  const TrainSpec& train = facts.value.train;
  if (facts.value.ddp.join != "off") return "a step left out inside join";
  // The replay takes the buckets from the records, and there is none of a step that is left out.
  if (at.when == "after_backward" && train.zero_grad == "never") return "what was reduced stays";
  const bool shorter =
      any_event(facts.value, [](const AtSpec& other) { return other.micro_batches.has_value(); });
  if (at.when == "after_forward" && facts.local_passes && shorter) {
    return "leaves the reducer armed (E14)";
  }
  if (at.ranks.empty() && !at.retry) return nullptr;
  if (train.agree == "never") return "nobody else knows of it";
  if (at.when != train.agree) return "the others have gone on";
  const bool is_last =
      train.micro_batches == 1 || at.micro_batch.value_or(0) + 1 == train.micro_batches;
  if (at.when != "before_forward" && (!is_last || shorter)) return "the others have gone on";
  if (at.when == "before_forward" && at.micro_batch.value_or(0) != 0) return "others have begun";
  return nullptr;
}

const char* why_retry_is_wrong(const Facts& facts, const AtSpec& at) {
  const TrainSpec& train = facts.value.train;
  if (at.when == "after_forward" && facts.local_passes) return "leaves the reducer armed (E14)";
  if (train.zero_grad == "never") return "the first attempt's gradients stay";
  if (facts.buffers || facts.exchanges) return "the first attempt's statistics stay";
  const bool has_reduced =
      at.when == "after_backward" || (facts.every && at.micro_batch.value_or(0) > 0);
  if (has_reduced && facts.value.ddp.gradient_as_bucket_view && train.zero_grad != "none") {
    return "the first attempt's gradients lie in the buckets (G3)";
  }
  return why_agreement_fails(facts, at);
}

const char* why_evaluation_is_wrong(const Facts& facts, const AtSpec& at) {
  if (at.evaluate_through == "module") {
    return facts.has(BlockKind::kAllToAll) ? "an exchange outside of the wrapper" : nullptr;
  }
  if (!at.ranks.empty()) return "a wrapped forward on some ranks only (J5)";
  if (facts.value.ddp.join != "off" && !is_before_window(at) && at.when != "after_step") {
    return "joined ranks shadow one forward for each reduction (O1)";
  }
  // A loss without a backward is still there, and checks take it for one that is to come.
  const bool keeps_graph =
      at.when == "after_forward" ||
      (at.when == "after_backward" && facts.value.ddp.checks != "off" &&
       any_event(facts.value, [](const AtSpec& other) { return other.detach; }));
  if (keeps_graph && facts.buffers && facts.value.ddp.broadcast_buffers) {
    return "a broadcast overwrites saved buffers (J6)";
  }
  if (!at.evaluate_with_gradients) return nullptr;
  if (at.when == "after_forward") return "arms for another graph (E12)";
  if (facts.local_passes || facts.value.ddp.join != "off") return "leaves the reducer armed (E14)";
  // It arms for the whole model, and no forward of the wrapper arms anew for the route.
  const bool bypasses = any_event(facts.value, [](const AtSpec& other) { return other.bypass; });
  return bypasses && any_event(facts.value, leaves_blocks_out) ? "leaves the reducer armed (E14)"
                                                               : nullptr;
}

const char* why_reload_is_wrong(const Facts& facts, const AtSpec& at) {
  const Case& value = facts.value;
  if (!at.ranks.empty()) return "a constructor meets the others' training";
  if (value.ddp.join != "off") return "join goes around the whole loop";
  // What is added to a 0 is another than what is assigned where it is a -0, or absent.
  if (value.train.zero_grad != "none") return "zeroed gradients are not saved";
  if (any_event(facts.value, [](const AtSpec& other) { return !other.freeze.empty(); })) {
    return "what was frozen is trained again";
  }
  // Construction broadcasts rank 0's buffers, whether or not the next forward would (J4).
  if (facts.buffers && any_event(facts.value, [](const AtSpec& other) {
        return other.evaluate > 0 || other.skip_step;
      })) {
    return "construction broadcasts what the next forward would not";
  }
  return nullptr;
}

// Mended by the broadcast of the forward that follows it (J1, J4).
const char* why_scaling_is_seen(const Facts& facts, const AtSpec& at) {
  if (!facts.value.ddp.broadcast_buffers || at.ranks.empty() || covers(at.ranks, 0) ||
      facts.value.ddp.join != "off" || !is_before_window(at) || !facts.reduces) {
    return "no broadcast mends it";
  }
  if (facts.value.train.sync_on == "never") return "no broadcast mends it";
  return any_event(facts.value,
                   [](const AtSpec& other) {
                     return other.evaluate > 0 || other.skip_step || other.retry ||
                            other.ascend > 0.0 || other.bypass || !other.sync_buffers.empty();
                   })
             ? "no broadcast mends it"
             : nullptr;
}

bool names_exist(const Facts& facts, const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return !find_slots(facts.plan, name).empty();
  });
}

const char* why_freezing_is_wrong(const Facts& facts, const AtSpec& at) {
  const Case& value = facts.value;
  const std::vector<std::string>& names = at.freeze.empty() ? at.unfreeze : at.freeze;
  if (!names_exist(facts, names)) return "no such parameter";
  if (!at.ranks.empty()) return "on some ranks only";
  if (facts.reduces && !value.ddp.find_unused_parameters) return "a bucket waits for it (A10)";
  if (at.when != "before_forward") return "in the middle of a window";
  const bool was_frozen = std::any_of(value.at.begin(), value.at.end(), [&](const AtSpec& other) {
    return other.freeze == at.unfreeze && other.ranks.empty();
  });
  if (at.freeze.empty() && !was_frozen) return "unknown to the reducer (A10)";
  if (!value.model.frozen.empty() && at.freeze.empty()) return "unknown to the reducer (A10)";
  // Something is left for every loss to depend on.
  for (const Place& place : facts.places()) {
    std::vector<bool> left = place.trained;
    for (const AtSpec& other : value.at) {
      for (const std::string& name : other.freeze) {
        for (const std::int64_t slot : find_slots(facts.plan, name)) {
          left[static_cast<std::size_t>(facts.plan.slots[static_cast<std::size_t>(slot)].tensor)] =
              false;
        }
      }
    }
    if (std::none_of(left.begin(), left.end(), [](bool is) { return is; })) {
      return "nothing is left to train";
    }
  }
  return nullptr;
}

// What a reference takes over only where all ranks do it.
const char* why_not_everywhere(const AtSpec& at) {
  return at.ranks.empty() ? nullptr : "on some ranks only";
}

const char* why_exchange_is_wrong(const Facts& facts, const AtSpec& at) {
  if (!at.ranks.empty()) return "on some ranks only";
  if (facts.value.ddp.join != "off") return "joined ranks take no part in it";
  if (at.when != "after_step" && any_event(facts.value, retries)) {
    return "a rank that fails issues less";
  }
  const bool decided_by_some = any_event(
      facts.value, [](const AtSpec& other) { return other.skip_step && !other.ranks.empty(); });
  if (decided_by_some && at.when != "after_step") return "a rank that skips issues less";
  return nullptr;
}

const char* why_buffers_differ(const Facts& facts, const AtSpec& at) {
  if (!facts.buffers) return "there is none";
  if (at.when == "after_forward") return "overwrites saved buffers (J6)";
  return why_exchange_is_wrong(facts, at);
}

const char* why_bypass_is_wrong(const Facts& facts) {
  const DdpSpec& ddp = facts.value.ddp;
  const bool alone = facts.value.world.ranks == 1 && facts.reduces && ddp.checks == "off" &&
                     ddp.hook == "none" && ddp.join == "off" && !ddp.static_graph && !facts.sparse;
  return alone ? nullptr : "nothing is reduced (H6)";
}

const char* why_ascent_is_wrong(const Facts& facts, const AtSpec& at) {
  if (facts.value.ddp.join != "off") return "joined ranks shadow one forward for each reduction";
  if (!facts.reduces || any_event(facts.value, retries) || any_event(facts.value, skips)) {
    return "a first pass that does not end";
  }
  if (facts.exchanges || facts.value.train.backward_from == "each") return "a first pass of parts";
  if (!clears_gradients(facts.value) &&
      any_event(facts.value, [](const AtSpec& other) { return !other.freeze.empty(); })) {
    return "a first pass uses what is frozen then, and whose old gradient stays";
  }
  if (facts.value.ddp.checks != "off") return "checks see that replicas differ";
  return why_not_everywhere(at);
}

bool exists(const Facts& facts, const std::vector<std::int64_t>& list, std::int64_t count) {
  (void)facts;
  return std::all_of(list.begin(), list.end(), [&](std::int64_t each) { return each < count; });
}

const char* why_place_is_wrong(const Facts& facts, const AtSpec& at) {
  const TrainSpec& train = facts.value.train;
  if (!exists(facts, at.ranks, facts.value.world.ranks) || !exists(facts, at.steps, train.steps) ||
      at.micro_batch.value_or(0) >= train.micro_batches ||
      at.forward.value_or(0) >= train.forwards_per_backward) {
    return "a place that does not exist";
  }
  if (at.is_routing()) return nullptr;
  // Something that a step is too short for, or that is not reached, never comes about.
  const auto reached = [&](std::int64_t rank, std::int64_t step) {
    if (!covers(at.ranks, rank) || !covers(at.steps, step)) return false;
    if (!train.steps_of_rank.empty() &&
        train.steps_of_rank[static_cast<std::size_t>(rank)] <= step) {
      return false;
    }
    return std::none_of(facts.value.at.begin(), facts.value.at.end(), [&](const AtSpec& other) {
      if (&other == &at) return false;
      if (other.leave && covers(other.ranks, rank)) {
        return other.steps.empty() ||
               step >= *std::min_element(other.steps.begin(), other.steps.end());
      }
      if (!covers(other.steps, step)) return false;
      const bool skipped =
          other.skip_step || other.retry || (!at.site.empty() && (other.detach || other.bypass));
      const bool shorter =
          other.micro_batches && at.micro_batch.value_or(0) >= *other.micro_batches;
      return skipped || shorter;
    });
  };
  for (std::int64_t rank = 0; rank < facts.value.world.ranks; ++rank) {
    for (std::int64_t step = 0; step < train.steps; ++step) {
      if (reached(rank, step)) return nullptr;
    }
  }
  return "it never comes about";
}

// Sums of routes that hold at one place.
bool routes_do_not_fit(const Facts& facts) {
  const Case& value = facts.value;
  if (!any_event(facts.value, leaves_blocks_out)) return false;
  std::vector<Route> seen;
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    for (std::int64_t step = 0; step < value.train.steps; ++step) {
      for (std::int64_t micro = 0; micro < value.train.micro_batches; ++micro) {
        for (std::int64_t i = 0; i < value.train.forwards_per_backward; ++i) {
          const Route route = route_at(value, rank, step, micro, i);
          if (std::find(seen.begin(), seen.end(), route) != seen.end()) continue;
          seen.push_back(route);
          if (!check_route(value.model, value.data, route).empty()) return true;
          const std::size_t heads = facts.plan.stages.back().size();
          const PlannedRoute planned = plan_route(facts.plan, route);
          std::size_t without = 0;
          for (const std::int64_t head : planned.heads_run) {
            const auto& name = facts.plan
                                   .blocks[static_cast<std::size_t>(
                                       facts.plan.stages.back()[static_cast<std::size_t>(head)])]
                                   .name;
            without += std::count(route.without_loss.begin(), route.without_loss.end(), name) > 0;
          }
          if (heads > 1 && without == planned.heads_run.size()) return true;
        }
      }
    }
  }
  return false;
}

// Behind a parameter that is an output no batch is left for what looks at one.
bool offset_stands_alone(const Facts& facts) {
  if (!facts.has(BlockKind::kOffset)) return false;
  for (std::size_t i = 0; i + 1 < facts.plan.stages.size(); ++i) {
    const auto& stage = facts.plan.stages[i];
    if (std::all_of(stage.begin(), stage.end(), [&](std::int64_t block) {
          return facts.plan.blocks[static_cast<std::size_t>(block)].spec.kind == BlockKind::kOffset;
        })) {
      return true;
    }
  }
  return any_event(facts.value,
                   [](const AtSpec& at) { return !at.skip.empty() || !at.exit_after.empty(); });
}

void mend_offset(Case& value, Dice& dice) {
  const auto routes = [](const AtSpec& at) { return !at.skip.empty() || !at.exit_after.empty(); };
  if (std::any_of(value.at.begin(), value.at.end(), routes) && dice.chance(50)) {
    value.at.erase(std::remove_if(value.at.begin(), value.at.end(), routes), value.at.end());
    return;
  }
  for (auto& [name, text] : value.model.blocks) {
    if (text.rfind("offset", 0) == 0) text = "identity";
  }
}

void erase_a_route(Case& value, Dice& dice) {
  std::vector<std::size_t> routes;
  for (std::size_t i = 0; i < value.at.size(); ++i) {
    if (leaves_blocks_out(value.at[i])) routes.push_back(i);
  }
  value.at.erase(value.at.begin() + static_cast<std::ptrdiff_t>(dice.one_of(routes)));
}

// Both decide what becomes of one step.
bool several_verdicts(const Facts& facts) {
  return std::count_if(facts.value.at.begin(), facts.value.at.end(), [](const AtSpec& at) {
           return at.skip_step || at.retry || at.leave || at.detach || at.bypass;
         }) > 1;
}

void erase_a_verdict(Case& value, Dice&) {
  const auto last = std::find_if(value.at.rbegin(), value.at.rend(), [](const AtSpec& at) {
    return at.skip_step || at.retry || at.leave || at.detach || at.bypass;
  });
  value.at.erase(std::next(last).base());
}

}  // namespace

const char* why_event_is_wrong(const Facts& facts, const AtSpec& at) {
  if (const char* why = why_place_is_wrong(facts, at)) return why;
  if (at.is_routing()) return why_route_is_wrong(facts, at);
  if (!at.raise.empty()) return at.retry ? why_retry_is_wrong(facts, at) : "a rank fails";
  if (at.skip_step) return why_agreement_fails(facts, at);
  if (at.stall || at.add_buffer > 0) return "a disturbance";
  if (at.leave) {
    if (facts.value.ddp.join == "off" || at.ranks.empty()) return "the others wait";
    return evaluation_before_leaving(facts.value, at) != nullptr ? "a step that only begins (O1)"
                                                                 : nullptr;
  }
  if (at.evaluate > 0) return why_evaluation_is_wrong(facts, at);
  if (at.reload) return why_reload_is_wrong(facts, at);
  if (at.scale_buffers != 1.0) return why_scaling_is_seen(facts, at);
  if (!at.freeze.empty() || !at.unfreeze.empty()) return why_freezing_is_wrong(facts, at);
  if (!at.collective.empty()) return why_exchange_is_wrong(facts, at);
  if (!at.sync_buffers.empty()) return why_buffers_differ(facts, at);
  if (at.bypass) return why_bypass_is_wrong(facts);
  if (at.ascend > 0.0) return why_ascent_is_wrong(facts, at);
  if (at.detach) {
    if (facts.value.ddp.join != "off") return "joined ranks wait";
    return facts.local_passes ? "leaves the reducer armed (E14)" : why_not_everywhere(at);
  }
  if (at.keep_gradients) {
    const bool none = at.steps == std::vector<std::int64_t>{0};
    return none || facts.value.train.zero_grad == "never" ? nullptr : "old gradients stay (F11)";
  }
  if (at.lr || at.copy_gradients) return why_not_everywhere(at);
  const bool issues_none = (facts.windows && facts.value.train.sync_on == "never") ||
                           hook_goes_local(facts.value) || !facts.reduces;
  return at.site == "bucket" && issues_none ? "it never comes about" : nullptr;  // a pause
}

const std::vector<Rule>& event_rules() {
  static const std::vector<Rule> rules = {
      {"a route that does not fit", routes_do_not_fit, erase_a_route},
      {"no batch behind an offset", offset_stands_alone, mend_offset},
      {"several entries decide about steps", several_verdicts, erase_a_verdict},
  };
  return rules;
}

}  // namespace lockstep::harness::fuzz
