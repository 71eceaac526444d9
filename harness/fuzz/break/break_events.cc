// SPDX-License-Identifier: Apache-2.0
// Plants [[at]] entries, and options that are missing.
#include <algorithm>

#include "harness/fuzz/break/break_draws.h"
#include "harness/model.h"

namespace lockstep::harness::fuzz {

namespace {

void give_buffers(Case& value) {
  value.model = normalised_model();
  value.train.batch_per_rank = 2 * value.train.micro_batches;
  value.data.samples = value.world.ranks * value.train.batch_per_rank * value.train.steps;
}

std::string any_place() {
  return any_of<std::string>({"before_forward", "after_forward", "after_backward", "after_step"});
}

// Some parameters, but not all.
std::vector<std::string> some_parameters(const Case& value) {
  const std::vector<std::string> all = parameter_names(value.model);
  return {any_of(all)};
}

// Before a collective in the place of a moment.
void move_to_site(const Case& value, AtSpec& at) {
  at.when = AtSpec().when;
  at.site = value.ddp.find_unused_parameters && one_in(4) ? "used_map" : "bucket";
  if (at.site == "bucket" && one_in(2)) at.bucket = number(0, 1);
}

void plant_disturbance(Case& value, const std::string& action, AtSpec& at) {
  if (action == "raise") {
    at.raise = "out of memory";
    at.retry = one_in(4);
  } else if (action == "stall") {
    at.stall = true;
  } else {
    at.collective = any_of<std::string>({"all_reduce", "broadcast", "all_gather", "barrier"});
    at.collective_numel = at.collective == "barrier" ? 1 : number(1, 4);
  }
  at.when = any_place();
  if (at.retry) {
    at.when = AtSpec().when;
  } else if (one_in(3)) {
    move_to_site(value, at);
  }
  if (one_in(4) && (action == "raise" || action == "stall")) {
    value.world.timeout_ms = 1000;
  }
}

void plant_state(Case& value, const std::string& action, AtSpec& at) {
  if (action == "lr") {
    at.lr = any_of<double>({0.0, 0.01, 0.2});
  } else if (action == "freeze") {
    at.freeze = some_parameters(value);
    value.ddp.static_graph = false;
  } else {
    at.unfreeze = some_parameters(value);
    value.model.frozen = at.unfreeze;
  }
  at.when = any_of<std::string>({"before_forward", "before_forward", "after_step"});
}

void plant_evaluation(Case& value, AtSpec& at) {
  if (!one_in(3)) give_buffers(value);
  at.evaluate = number(1, 2);
  at.evaluate_through = one_in(4) ? "module" : "wrapper";
  at.evaluate_with_gradients = one_in(3);
  at.when = any_of<std::string>({"before_forward", "after_step"});
}

}  // namespace

void plant_event(Case& value, const std::string& action) {
  const bool of_buffers = action == "scale_buffers" || action == "sync_buffers" ||
                          (action == "add_buffer" && !one_in(4));
  if (of_buffers) {
    give_buffers(value);
    value.model.dtype = "float32";
  }
  if (action == "scale_buffers") {
    value.train.micro_batches = 1;
    value.train.batch_per_rank = 2;
  }
  AtSpec at;
  at.ranks = one_in(6) ? std::vector<std::int64_t>() : some_ranks(value);
  at.steps = {any_step(value, action == "keep_gradients" ? 1 : 0)};
  if (action == "raise" || action == "stall" || action == "collective") {
    plant_disturbance(value, action, at);
  } else if (action == "lr" || action == "freeze" || action == "unfreeze") {
    plant_state(value, action, at);
  } else if (action == "evaluate") {
    plant_evaluation(value, at);
  } else if (action == "leave") {
    at.leave = true;
    at.when = any_place();
  } else if (action == "skip_step") {
    at.skip_step = true;
    at.when = any_of<std::string>({"before_forward", "after_forward", "after_backward"});
  } else if (action == "detach") {
    at.detach = true;
  } else if (action == "reload") {
    at.reload = true;
    value.train.steps = std::max<std::int64_t>(value.train.steps, 2);
    at.steps = {any_step(value, 1)};
  } else if (action == "add_buffer") {
    at.add_buffer = number(1, 3);
    at.when = any_of<std::string>({"before_forward", "after_step"});
  } else if (action == "bypass") {
    at.bypass = true;
    at.ranks = any_ranks(value);
  } else if (action == "copy_gradients") {
    at.copy_gradients = true;
    at.when = any_of<std::string>({"after_backward", "after_step"});
    value.ddp.gradient_as_bucket_view = false;
  } else if (action == "sync_buffers") {
    at.sync_buffers = any_of<std::string>({"broadcast", "mean"});
    at.when = any_of<std::string>({"before_forward", "after_step"});
  } else if (action == "scale_buffers") {
    at.scale_buffers = any_of<double>({2.0, 3.0});
    if (!at.ranks.empty()) at.ranks.front() = 0;
    at.when = "after_step";
  } else if (action == "keep_gradients") {
    at.keep_gradients = true;
    at.ranks = any_ranks(value);
  } else {
    at.ascend = any_of<double>({0.5, 0.25});
  }
  value.at.push_back(at);
}

namespace {

void plant_checked(Case& value, const std::string& option) {
  value.ddp.checks = any_of<std::string>({"fast", "full"});
  value.train.steps = std::max<std::int64_t>(value.train.steps, 2);
  if (option == "unarmed_backward") {
    value.ddp.static_graph = false;
    value.train.backwards_per_forward = number(2, 3);
  } else if (option == "saved_buffer") {
    value.ddp.static_graph = false;
    give_buffers(value);
    value.train.forwards_per_backward = 2;
    value.train.batch_per_rank *= 2;
    value.data.samples *= 2;
  } else if (option == "checked_replacement") {
    plant_fault(value, "replaced_parameter");
    value.faults.back().ranks.clear();
  } else {
    AtSpec at;
    at.ranks = some_ranks(value);
    at.steps = {number(0, value.train.steps - 2)};
    at.lr = any_of<double>({0.0, 0.01, 0.2});
    value.at.push_back(at);
  }
}

}  // namespace

void plant_option(Case& value, const std::string& option) {
  if (option == "uneven_inputs" || option == "join_throw") {
    for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
      value.train.steps_of_rank.push_back(number(0, value.train.steps));
    }
    value.train.steps_of_rank[static_cast<std::size_t>(number(0, value.world.ranks - 1))] =
        value.train.steps;
    if (option == "join_throw") {
      value.ddp.join = "throw";
      value.ddp.static_graph = false;
    }
    return;
  }
  if (option == "own_init") {
    value.ddp.init_sync = false;
    value.ddp.find_unused_parameters = false;
    FaultSpec fault;
    fault.kind = "per_rank_init";
    fault.ranks = any_ranks(value);
    value.faults.push_back(fault);
    return;
  }
  if (option == "local_hook") {
    value.ddp.hook = any_of<std::string>({"noop", "post_local_sgd"});
    value.train.steps = std::max<std::int64_t>(value.train.steps, 2);
    return;
  }
  if (option == "ready_twice") {
    value.model = recomputed_model();
    value.ddp.find_unused_parameters = false;
    value.ddp.static_graph = false;
    return;
  }
  if (option == "unarmed_backward" || option == "saved_buffer" || option == "checked_drift" ||
      option == "checked_replacement") {
    plant_checked(value, option);
    return;
  }
  value.model = branches_model();
  value.ddp.find_unused_parameters = false;
  value.ddp.static_graph = option == "changing_static_graph";
  AtSpec at;
  at.skip = {any_of<std::string>({"left", "right"})};
  at.ranks = one_in(2) ? std::vector<std::int64_t>() : some_ranks(value);
  at.steps = {any_step(value)};
  if (one_in(3) && !value.ddp.static_graph) at.steps.clear();
  value.at.push_back(at);
}

}  // namespace lockstep::harness::fuzz
