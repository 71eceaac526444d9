// SPDX-License-Identifier: Apache-2.0
// The same training in another order, on other ranks, in other pieces, or without a wrapper.
#include <fmt/format.h>

#include <algorithm>

#include "harness/fuzz/properties/relations.h"
#include "harness/fuzz/properties/run_difference.h"
#include "harness/fuzz/script_traits.h"
#include "harness/losses.h"
#include "harness/model.h"

namespace lockstep::harness::fuzz {
namespace {

std::string compare(const Run& subject, const Run& other, const std::string& variant_is,
                    const Alike& alike) {
  const std::string found = run_difference(subject, other, alike);
  return found.empty() ? "" : fmt::format("with {}: {}", variant_is, found);
}

// ---- schedule

Case on_other_schedule(const Case& value) {
  Case variant = as_variant(value);
  if (value.schedule.policy == "round_robin") variant.schedule.policy = "pct";
  return variant;
}

// Not with a launch, whose schedule is that of the meeting; nor where virtual time decides.
bool schedule_applies(const Case& value) {
  return !value.launch.is_asked_for() && value.world.timeout_ms == 0 &&
         !any_event(value, [](const AtSpec& at) { return at.from_ms != 0; }) &&
         std::none_of(value.faults.begin(), value.faults.end(),
                      [](const FaultSpec& fault) { return fault.from_ms != 0; });
}

std::string schedule_difference(const Case& value, const Run& subject, Executor& executor) {
  const Case variant = on_other_schedule(value);
  return compare(subject, executor.execute(compile_subject(variant)),
                 fmt::format("schedule.policy = \"{}\"", variant.schedule.policy), {});
}

// ---- rank_permutation

// What is scripted moves with the data where it is part of the program; other events are
// everybody's.
bool rank_permutation_applies(const Case& value) {
  return is_plain(value) && value.world.ranks > 1 && sums_commute(value) &&
         hook_is_elementwise(value) && !has_buffers(value) && !uses_all_to_all(value.model) &&
         std::all_of(value.at.begin(), value.at.end(), [](const AtSpec& at) {
           return at.is_routing() || (at.ranks.empty() && !at.leave);
         });
}

std::string rank_permutation_difference(const Case& value, const Run& subject, Executor& executor) {
  Program program = compile_subject(as_variant(value));
  Alike alike;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    alike.partner.push_back(static_cast<std::int64_t>((rank + 1) % program.ranks.size()));
  }
  std::rotate(program.ranks.begin(), program.ranks.begin() + 1, program.ranks.end());
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    program.ranks[rank].rank = static_cast<std::int64_t>(rank);
  }
  const Run other = executor.execute(program);
  if (value.data.exact && (rounded(subject) || rounded(other))) return "";
  // A sum of a NaN and another has the payload of the rank's own.
  alike.numbers = Equality::kValues;
  return compare(subject, other, "every rank's data and script on the rank below", alike);
}

// ---- micro_batches

// PyTorch's reducer refuses a static graph whose first forward is under no_sync, and leaves local
// what was used only there (scenarios/peer).
bool follows_windows(const Case& value) {
  return value.ddp.sync != "torch" || !(value.ddp.static_graph || use_varies(value));
}

Case with_other_split(const Case& value) {
  Case variant = as_variant(value);
  variant.train.micro_batches = value.train.micro_batches > 1 ? 1 : 2;
  return variant;
}

bool micro_batches_applies(const Case& value) {
  const bool of_parts = any_event(value, [](const AtSpec& at) {
    return at.micro_batch || at.forward || at.samples || at.micro_batches;
  });
  return is_plain(value) && value.data.exact && !of_parts && value.ddp.join == "off" &&
         value.train.sync_on != "never" && value.train.forwards_per_backward == 1 &&
         one_backward_per_window(value) && clears_gradients(value) && hook_averages(value) &&
         !has_buffers(value) && !uses_dropout(value.model) && !uses_all_to_all(value.model) &&
         !uses_batch_norm(value.model) && !uses_sync_batch_norm(value.model) &&
         !is_input_gradient(value.train.loss) && follows_windows(value) &&
         is_sound(with_other_split(value));
}

std::string micro_batches_difference(const Case& value, const Run& subject, Executor& executor) {
  const Case variant = with_other_split(value);
  const Run other = executor.execute(compile_subject(variant));
  if (rounded(subject) || rounded(other)) return "";
  Alike alike;
  alike.numbers = Equality::kValuesOrUndefined;
  alike.losses = false;  // one per micro-batch
  return compare(subject, other, fmt::format("micro_batches = {}", variant.train.micro_batches),
                 alike);
}

// ---- no_sync

Case with_other_windows(const Case& value) {
  Case variant = as_variant(value);
  variant.train.sync_on = value.train.sync_on == "last" ? "every" : "last";
  return variant;
}

// Whatever one micro-batch leaves out another may bring, unless each is reduced on its own.
bool needs_whole_windows(const Case& value) {
  return reduces_in_backward(value.ddp) &&
         (!value.ddp.find_unused_parameters || value.ddp.static_graph);
}

// An average is averaged again: to itself, where nothing is rounded or there is one rank.
bool no_sync_applies(const Case& value) {
  const bool is_known = value.train.sync_on == "last" || value.train.sync_on == "every";
  const bool freezes =
      any_event(value, [](const AtSpec& at) { return !at.freeze.empty() || !at.unfreeze.empty(); });
  return is_plain(value) && is_known && value.train.micro_batches > 1 &&
         value.train.no_sync_covers != "backward" && (value.world.ranks == 1 || value.data.exact) &&
         value.ddp.join == "off" && clears_gradients(value) && one_backward_per_window(value) &&
         hook_averages(value) && !has_buffers(value) && !has_sparse(value) && !freezes &&
         !(use_varies(value) && needs_whole_windows(value)) && follows_windows(value) &&
         is_sound(with_other_windows(value));
}

std::string no_sync_difference(const Case& value, const Run& subject, Executor& executor) {
  const Case variant = with_other_windows(value);
  const Run other = executor.execute(compile_subject(variant));
  if (value.data.exact && (rounded(subject) || rounded(other))) return "";
  Alike alike;
  alike.numbers = value.data.exact ? Equality::kValuesOrUndefined : Equality::kBits;
  return compare(subject, other, fmt::format("sync_on = \"{}\"", variant.train.sync_on), alike);
}

// ---- world_size_one

Case without_sync(const Case& value) {
  Case variant = as_variant(value);
  variant.ddp = DdpSpec();
  variant.ddp.sync = "none";
  variant.ddp.broadcast_buffers = value.ddp.broadcast_buffers;
  variant.train.sync_on = value.train.sync_on;
  return variant;
}

// A sparse gradient is coalesced on its way, which adds rows in another order.
bool world_size_one_applies(const Case& value) {
  return is_plain(value) && value.world.ranks == 1 && reduces_in_backward(value.ddp) &&
         value.ddp.join == "off" && (hook_averages(value) || value.ddp.hook == "noop") &&
         !has_sparse(value) && !is_input_gradient(value.train.loss) && !rounds_by_sink(value) &&
         is_sound(without_sync(value));
}

std::string world_size_one_difference(const Case& value, const Run& subject, Executor& executor) {
  return compare(subject, executor.execute(compile_subject(without_sync(value))), "no wrapper", {});
}

}  // namespace

const std::vector<Property>& script_relations() {
  static const std::vector<Property> kRelations = {
      {"schedule", "what the ranks do in between does not change a bit (T6)", schedule_applies,
       schedule_difference},
      {"rank_permutation", "it does not matter which rank has which data", rank_permutation_applies,
       rank_permutation_difference, true},
      {"micro_batches", "a batch may come in pieces", micro_batches_applies,
       micro_batches_difference},
      {"no_sync", "gradients that are summed and then averaged are averages, summed (T5)",
       no_sync_applies, no_sync_difference},
      {"world_size_one", "one rank trains as if there were no wrapper", world_size_one_applies,
       world_size_one_difference},
  };
  return kRelations;
}

}  // namespace lockstep::harness::fuzz
