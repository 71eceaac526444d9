// SPDX-License-Identifier: Apache-2.0
// What must come out of a script without a mistake.
#include <algorithm>
#include <string>

#include "harness/fuzz/predict/predict.h"
#include "harness/fuzz/script_traits.h"
#include "harness/fuzz/valid/valid_facts.h"
#include "harness/program.h"

namespace lockstep::harness::fuzz {
namespace {

bool leaves_something_out(const Case& value) {
  const Facts facts(value);
  const std::vector<Place> places = facts.places();
  return any_event(value, [](const AtSpec& at) { return !at.freeze.empty() || at.detach; }) ||
         std::any_of(places.begin(), places.end(),
                     [&](const Place& place) { return place.trained != facts.tracked(); });
}

// What the replay works out: sums, but not what a hook leaves out of them, nor a first pass.
bool is_replayed(const Case& value) {
  return (hook_averages(value) || hook_casts(value)) &&
         !any_event(value, [](const AtSpec& at) { return at.ascend > 0.0; });
}

// Whether one process on the batch of all ranks does what the script means.
bool is_one_process(const Case& value) {
  const TrainSpec& train = value.train;
  const DdpSpec& ddp = value.ddp;
  if (!why_no_serial(value).empty() || !is_replayed(value)) return false;
  if (!hook_averages(value) || (ddp.hook != "none" && ddp.join == "divide_by_active")) return false;
  if (train.zero_grad == "never" && ddp.join != "off") return false;
  // A sum over ranks comes out divided by their number, a mean times it.
  const bool is_sum = train.reduction == "sum";
  if (train.scale_loss_by_world_size != is_sum && value.world.ranks > 1) return false;
  const bool has_samples =
      any_event(value, [](const AtSpec& at) { return at.samples.has_value(); });
  if (has_samples && !is_sum && train.mean_over != "all") return false;
  // It has the whole window in one micro-batch, and leaves none of it out.
  if (train.zero_grad == "never" && train.micro_batches > 1 &&
      any_event(value, [](const AtSpec& at) { return at.skip_step; })) {
    return false;
  }
  // Zeros in the place of what is unused move it by momentum and decay.
  if (!reduces_in_backward(value.ddp) && leaves_something_out(value)) return false;
  if (!is_uneven(value)) return true;
  // Inside join: what counts as a mean is not that of the samples that are left.
  const bool has_windows =
      any_event(value, [](const AtSpec& at) { return at.micro_batches.has_value(); });
  return !reduces_each_micro_batch(value) && !has_samples && !has_windows &&
         train.mean_over != "all" && (!is_sum || ddp.join == "divide_by_initial");
}

bool has_sink(const Case& value) {
  return reduces_in_backward(value.ddp) &&
         (value.ddp.find_unused_parameters || value.ddp.static_graph);
}

}  // namespace

ExpectSpec predict_valid(const Case& value) {
  ExpectSpec expect;
  if (!is_replayed(value)) {
    expect.oracles = {"ranks"};
  } else if (!is_one_process(value)) {
    expect.oracles = {"ranks", "replay"};
  } else if (!value.data.exact &&
             (!is_one_batch(value) || (has_sink(value) && rounds_by_sink(value)))) {
    expect.outcome = "within_bound";
  }
  return expect;
}

}  // namespace lockstep::harness::fuzz
