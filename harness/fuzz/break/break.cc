// SPDX-License-Identifier: Apache-2.0
// The settled script that a mistake is put into, and which one that is.
#include "harness/fuzz/break/break.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "harness/at_actions.h"
#include "harness/fault_kinds.h"
#include "harness/fuzz/break/break_draws.h"

namespace lockstep::harness::fuzz {

namespace {

constexpr const char* kOptions[] = {"missing_find_unused",
                                    "changing_static_graph",
                                    "uneven_inputs",
                                    "join_throw",
                                    "own_init",
                                    "local_hook",
                                    "ready_twice",
                                    "checked_drift",
                                    "checked_replacement",
                                    "unarmed_backward",
                                    "saved_buffer"};
constexpr const char* kLaunches[] = {
    "launch_other_run",    "launch_too_many", "launch_other_size", "launch_rank_twice",
    "launch_rank_missing", "launch_loopback", "launch_interface"};

template <std::size_t size>
bool is_one_of(const char* const (&names)[size], const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Routes (but for `skip`, see missing_find_unused) and pauses leave nothing undone by themselves.
bool disturbs(const std::string& action) {
  constexpr const char* kOthers[] = {"skip",    "exit_after",    "mute",    "without_loss",
                                     "samples", "micro_batches", "sleep_ms"};
  return std::find(std::begin(kOthers), std::end(kOthers), action) == std::end(kOthers);
}

std::string linear(std::int64_t in, std::int64_t out) {
  return "linear " + std::to_string(in) + " " + std::to_string(out);
}

ModelSpec layers_model() {
  ModelSpec model;
  model.widths.clear();
  const std::int64_t count = number(2, 4);
  for (std::int64_t i = 0; i < count; ++i) model.widths.push_back(number(2, 5));
  model.activation = any_of<std::string>({"tanh", "identity"});
  model.bias = !one_in(3);
  return model;
}

OptimizerSpec any_optimizer() {
  OptimizerSpec optimizer;
  optimizer.kind = any_of<std::string>({"sgd", "adam", "adamw", "adagrad", "rmsprop"});
  optimizer.lr = 0.05;
  if (optimizer.kind == "sgd" && one_in(2)) optimizer.momentum = 0.9;
  return optimizer;
}

DdpSpec any_ddp() {
  constexpr std::int64_t kMuch = 25 << 20;
  DdpSpec ddp;
  const std::int64_t caps = number(0, 2);
  ddp.first_bucket_cap_bytes = caps == 0 ? kMuch : 1;
  ddp.bucket_cap_bytes = caps == 1 ? 1 : kMuch;
  ddp.gradient_as_bucket_view = one_in(2);
  ddp.find_unused_parameters = one_in(3);
  ddp.static_graph = !ddp.find_unused_parameters && one_in(4);
  return ddp;
}

// Epochs of whole batches, dealt without padding.
void deal(Case& value) {
  value.data.samples = value.world.ranks * value.train.batch_per_rank * number(1, 4);
  value.data.shuffle = !one_in(3);
}

// What of a valid script may stay, with the rest as plain as the rules of broken scripts want it.
Case settled(const Case& drawn) {
  Case value;
  value.title = drawn.title;
  value.seed = drawn.seed;
  value.world.ranks = one_in(12) ? 1 : std::max<std::int64_t>(drawn.world.ranks, 2);
  const std::string& policy = drawn.schedule.policy;
  if (policy == "random" || policy == "pct") {
    value.schedule.policy = policy;
  }
  value.model = layers_model();
  value.model.dtype = drawn.model.dtype;
  value.train.steps = number(1, 4);
  value.train.micro_batches = any_of<std::int64_t>({1, 1, 2, 3});
  value.train.batch_per_rank = value.train.micro_batches * number(1, 3);
  value.train.reduction = one_in(4) ? "sum" : "mean";
  value.train.zero_grad = one_in(2) ? "none" : "zero";
  value.train.optimizer_before_wrapping = one_in(4);
  value.train.optimizer = any_optimizer();
  value.ddp = any_ddp();
  deal(value);
  return value;
}

}  // namespace

std::vector<std::int64_t> some_ranks(const Case& value) {
  const std::int64_t count = value.world.ranks;
  if (count == 1) {
    return {};
  }
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::int64_t keep = one_in(2) ? 1 : number(1, count - 1);
  while (static_cast<std::int64_t>(ranks.size()) > keep) {
    ranks.erase(ranks.begin() + number(0, static_cast<std::int64_t>(ranks.size()) - 1));
  }
  return ranks;
}

std::vector<std::int64_t> any_ranks(const Case& value) {
  return one_in(3) ? std::vector<std::int64_t>() : some_ranks(value);
}

std::int64_t any_step(const Case& value, std::int64_t least) {
  return number(std::min(least, value.train.steps - 1), value.train.steps - 1);
}

ModelSpec branches_model() {
  const std::int64_t width = number(2, 4);
  ModelSpec model;
  model.kind = "graph";
  model.blocks = {{"trunk", linear(3, width)},
                  {"left", one_in(2) ? linear(width, width) : "scale " + std::to_string(width)},
                  {"right", linear(width, width)}};
  model.forward = {{"trunk"}, {"left", "right"}};
  if (one_in(2)) {
    model.blocks.emplace_back("act", "tanh");
    model.blocks.emplace_back("out", linear(width, 2));
    model.forward.push_back({"act"});
    model.forward.push_back({"out"});
  }
  return model;
}

ModelSpec normalised_model() {
  const std::int64_t width = number(2, 4);
  ModelSpec model;
  model.kind = "graph";
  model.blocks = {{"a", linear(3, width)},
                  {"norm", "batch_norm " + std::to_string(width)},
                  {"b", linear(width, 2)}};
  return model;
}

ModelSpec recomputed_model() {
  const std::string width = std::to_string(number(2, 4));
  ModelSpec model;
  model.kind = "graph";
  model.blocks = {{"a", "linear 3 " + width},
                  {"b", "linear " + width + " " + width + " checkpoint_reentrant"},
                  {"again", "same b"},
                  {"c", "linear " + width + " 2"}};
  return model;
}

bool can_break(const Space& space) {
  return space.sync == "ddp" && (space.backend == "sim" || space.backend == "gloo") &&
         !space.for_peer;
}

std::vector<std::string> mistakes() {
  std::vector<std::string> names(std::begin(kOptions), std::end(kOptions));
  names.insert(names.end(), std::begin(kLaunches), std::end(kLaunches));
  for (const FaultKind& kind : kFaultKinds) names.emplace_back(kind.name);
  for (const AtAction& action : kAtActions) {
    if (disturbs(action.name)) names.emplace_back(action.name);
  }
  return names;
}

namespace {

Case with_mistake(const Case& drawn, const std::string& mistake) {
  Case value = settled(drawn);
  if (is_one_of(kOptions, mistake)) {
    plant_option(value, mistake);
  } else if (is_one_of(kLaunches, mistake)) {
    plant_launch(value, mistake);
  } else if (find_fault_kind(mistake) != nullptr) {
    plant_fault(value, mistake);
  } else {
    plant_event(value, mistake);
  }
  return value;
}

}  // namespace

bool plant(Case& value, const Space& space, const std::string& mistake, const rc::Random& random) {
  if (!can_break(space)) {
    return false;
  }
  const Case drawn = value;
  value =
      rc::gen::exec([&] { return with_mistake(drawn, mistake); })(random, rc::kNominalSize).value();
  return true;
}

bool plant(Case& value, const Space& space, const rc::Random& random) {
  if (!can_break(space)) {
    return false;
  }
  const Case drawn = value;
  value = rc::gen::exec([&] { return with_mistake(drawn, any_of(mistakes())); })(random,
                                                                                 rc::kNominalSize)
              .value();
  return true;
}

}  // namespace lockstep::harness::fuzz
