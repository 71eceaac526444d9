// SPDX-License-Identifier: Apache-2.0
// Draws [[at]]: what ranks do besides training.
#include <algorithm>
#include <string>
#include <vector>

#include "harness/fuzz/draw/draw_topics.h"
#include "harness/fuzz/script_traits.h"
#include "harness/fuzz/valid/valid_facts.h"

namespace lockstep::harness::fuzz {
namespace {

const std::vector<std::string> kPlaces = {"before_forward", "after_forward", "after_backward",
                                          "after_step"};

class Events {
 public:
  Events(const Case& value, const Space& space, Dice& dice)
      : value_(value), space_(space), dice_(dice), plan_(plan_model(value.model)) {}

  std::vector<AtSpec> draw() {
    if (dice_.chance(35)) return {};
    const std::int64_t count = dice_.between(1, 4);
    for (std::int64_t i = 0; i < count; ++i) {
      if (dice_.chance(50)) {
        add_routing();
      } else {
        add_other();
      }
    }
    return std::move(events_);
  }

 private:
  AtSpec somewhere(bool all_ranks) {
    AtSpec at;
    if (!all_ranks) {
      for (std::int64_t rank = 0; rank < value_.world.ranks; ++rank) {
        if (dice_.chance(40)) at.ranks.push_back(rank);
      }
    }
    if (dice_.chance(60)) at.steps = {dice_.below(value_.train.steps)};
    return at;
  }

  void place_in_window(AtSpec& at) {
    const TrainSpec& train = value_.train;
    if (train.micro_batches > 1 && dice_.chance(50)) {
      at.micro_batch = dice_.below(train.micro_batches);
    }
    const bool about_forwards =
        !at.skip.empty() || !at.exit_after.empty() || !at.mute.empty() || !at.without_loss.empty();
    if (about_forwards && train.forwards_per_backward > 1 && dice_.chance(40)) {
      at.forward = dice_.below(train.forwards_per_backward);
    }
  }

  const std::string& block_of(std::size_t stage) {
    return plan_.blocks[static_cast<std::size_t>(dice_.one_of(plan_.stages[stage]))].name;
  }
  std::size_t some_stage(std::size_t count) {
    return static_cast<std::size_t>(dice_.below(static_cast<std::int64_t>(count)));
  }

  void add_routing() {
    AtSpec at = somewhere(dice_.chance(35));
    const std::size_t num_stages = plan_.stages.size();
    const TrainSpec& train = value_.train;
    const std::int64_t share = train.batch_per_rank / train.micro_batches;
    switch (dice_.below(8)) {
      case 0:
      case 1:
      case 2:
        at.skip = {block_of(some_stage(num_stages))};
        if (dice_.chance(20)) {
          const std::string& other = block_of(some_stage(num_stages));
          if (other != at.skip.front()) at.skip.push_back(other);
        }
        break;
      case 3:
        if (num_stages < 2) return;
        at.exit_after = block_of(some_stage(num_stages - 1));
        break;
      case 4:
        at.mute = {block_of(some_stage(num_stages))};
        break;
      case 5:
        if (plan_.stages.back().size() < 2) return;
        at.without_loss = {block_of(num_stages - 1)};
        break;
      case 6:
        at.samples =
            dice_.below(share / train.forwards_per_backward + 1) * train.forwards_per_backward;
        break;
      default:
        if (train.micro_batches < 2) return;
        at.ranks.clear();
        at.micro_batches = dice_.between(1, train.micro_batches - 1);
        events_.push_back(at);
        return;
    }
    place_in_window(at);
    events_.push_back(at);
  }

  const std::string& place() { return dice_.one_of(kPlaces); }

  std::string parameter_or_block() {
    const ParameterSlot& slot = dice_.one_of(plan_.slots);
    return dice_.chance(50) ? slot.name : plan_.blocks[static_cast<std::size_t>(slot.block)].name;
  }

  void sleep() {
    AtSpec at = somewhere(false);
    at.sleep_ms = space_.backend == "sim" ? dice_.between(1, 50) : 1;
    if (dice_.chance(30)) {
      at.steps.clear();
      at.site = "bucket";
    } else {
      at.when = place();
    }
    events_.push_back(at);
  }

  void issue() {
    AtSpec at = somewhere(true);
    at.collective = dice_.one_of({"all_reduce", "broadcast", "all_gather", "barrier"});
    at.collective_numel = dice_.between(1, 5);
    at.when = place();
    if (at.when != "after_step") place_in_window(at);
    events_.push_back(at);
  }

  void evaluate() {
    const bool module = dice_.chance(50);
    AtSpec at = somewhere(!module);
    at.evaluate = dice_.between(1, 2);
    at.evaluate_through = module ? "module" : "wrapper";
    at.evaluate_with_gradients = dice_.chance(25);
    at.when = place();
    events_.push_back(at);
  }

  // One rank or all decide that the step is skipped or begun anew, where all are told.
  void agree() {
    const std::string& agreed = value_.train.agree;
    const bool agrees = agreed != "never";
    AtSpec at = somewhere(!agrees || dice_.chance(30));
    if (at.steps.empty()) at.steps = {dice_.below(value_.train.steps)};
    if (agrees && dice_.chance(50)) {
      at.raise = "out of memory";
      at.retry = true;
      if (agreed != "before_forward" && value_.train.micro_batches > 1) {
        at.micro_batch = value_.train.micro_batches - 1;
      }
    } else {
      at.skip_step = true;
    }
    at.when = agrees ? agreed : dice_.one_of({"before_forward", "after_forward", "after_backward"});
    events_.push_back(at);
  }

  void buffers() {
    AtSpec at = somewhere(true);
    if (dice_.chance(60)) {
      at.sync_buffers = dice_.one_of({"broadcast", "broadcast", "mean"});
      at.when = place();
    } else {
      at.ranks = {value_.world.ranks - 1};
      at.scale_buffers = dice_.one_of({0.5, 2.0});
    }
    events_.push_back(at);
  }

  void rate() {
    AtSpec at = somewhere(true);
    at.lr = value_.data.exact ? dice_.one_of({0.25, 0.5})
                              : dice_.one_of({0.5, 2.0}) * value_.train.optimizer.lr;
    at.when = place();
    events_.push_back(at);
  }

  void frozen() {
    AtSpec at = somewhere(true);
    at.freeze = {parameter_or_block()};
    if (at.steps.empty()) at.steps = {dice_.below(value_.train.steps)};
    const std::int64_t later = at.steps.front() + 1;
    const std::vector<std::string> names = at.freeze;
    events_.push_back(at);
    if (later < value_.train.steps && dice_.chance(50)) {
      AtSpec again;
      again.steps = {dice_.between(later, value_.train.steps - 1)};
      again.unfreeze = names;
      events_.push_back(again);
    }
  }

  void add_other() {
    if (has_buffers(value_) && dice_.chance(35)) return buffers();
    AtSpec at = somewhere(true);
    switch (dice_.below(16)) {
      case 0:
      case 1:
        return sleep();
      case 2:
        return issue();
      case 3:
      case 4:
        return evaluate();
      case 5:
      case 6:
        return agree();
      case 7:
        return buffers();
      case 8:
        return frozen();
      case 9:
        return rate();
      case 10:
        at.detach = true;
        break;
      case 11:
        if (dice_.chance(50)) rate();  // what a reload must bring along
        at.reload = true;
        break;
      case 12:
        at.copy_gradients = true;
        at.when = place();
        break;
      case 13:
        at.keep_gradients = true;
        at.steps = {0};
        break;
      case 14:
        at.ascend = 0.25;
        break;
      default:
        at.bypass = true;
        break;
    }
    events_.push_back(at);
  }

  const Case& value_;
  const Space& space_;
  Dice& dice_;
  const ModelPlan plan_;
  std::vector<AtSpec> events_;
};

}  // namespace

void draw_events(Case& value, const Space& space, Dice& dice) {
  value.at = Events(value, space, dice).draw();
  // Inside join a rank may end its inputs by itself.
  if (value.ddp.join != "off" && value.ddp.join != "throw" && value.world.ranks > 1 &&
      dice.chance(20)) {
    AtSpec at;
    at.ranks = {dice.below(value.world.ranks)};
    at.steps = {dice.below(value.train.steps)};
    at.when = dice.one_of({"before_forward", "after_step"});
    at.leave = true;
    value.at.push_back(at);
  }
}

}  // namespace lockstep::harness::fuzz
