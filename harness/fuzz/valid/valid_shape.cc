// SPDX-License-Identifier: Apache-2.0
// Rules of numbers and kinds, without which a script contradicts itself.
#include <algorithm>
#include <string>

#include "harness/fuzz/meeting.h"
#include "harness/fuzz/script_traits.h"
#include "harness/fuzz/valid/valid_rules.h"
#include "harness/model.h"
#include "harness/scenario.h"

namespace lockstep::harness::fuzz {
namespace {

bool is_power_of_two(std::int64_t number) { return (number & (number - 1)) == 0; }

// The chunks that a forward's samples are cut into by an exchange of all ranks.
std::int64_t chunks(const Facts& facts) {
  return facts.has(BlockKind::kAllToAll) ? facts.value.world.ranks : 1;
}

// BatchNorm needs two numbers to have a variance: images have them in one sample.
std::int64_t samples_min(const Facts& facts) {
  if (facts.has(BlockKind::kBatchNorm)) return 2;
  return facts.has(BlockKind::kSyncBatchNorm) && facts.value.world.ranks == 1 ? 2 : 1;
}

bool batch_is_wrong(const Facts& facts) {
  const TrainSpec& train = facts.value.train;
  const std::int64_t forwards = train.micro_batches * train.forwards_per_backward;
  return train.batch_per_rank % (forwards * chunks(facts)) != 0 ||
         facts.forward < samples_min(facts);
}

void mend_batch(Case& value, Dice&) {
  const Facts facts(value);
  TrainSpec& train = value.train;
  const std::int64_t unit = train.micro_batches * train.forwards_per_backward * chunks(facts);
  train.batch_per_rank = unit * ((samples_min(facts) + chunks(facts) - 1) / chunks(facts));
}

std::int64_t samples_least(const Case& value) {
  const std::int64_t ranks = value.world.ranks;
  const std::int64_t batch = value.train.batch_per_rank;
  return value.data.drop_last ? ranks * batch : ranks * (batch - 1) + 1;
}

bool samples_are_few(const Facts& facts) {
  return facts.value.data.samples < samples_least(facts.value);
}

void mend_samples(Case& value, Dice& dice) {
  value.data.samples =
      samples_least(value) + dice.below(value.world.ranks * value.train.batch_per_rank + 1);
}

bool trains_nothing(const Facts& facts) {
  const std::vector<bool> trained = facts.trained_by({});
  return std::none_of(trained.begin(), trained.end(), [](bool is) { return is; });
}

void replace_kind(Case& value, const std::string& kind, const std::string& by) {
  for (auto& [name, text] : value.model.blocks) {
    if (text.rfind(kind, 0) == 0) text = by;
  }
}

void mend_training(Case& value, Dice&) {
  value.model.frozen.clear();
  replace_kind(value, "detach", "identity");
  replace_kind(value, "offset", "identity");
}

// Loss and targets. An offset is the same for all samples, so that their classes cannot be told.
bool loss_is_wrong(const Facts& facts) {
  const Case& value = facts.value;
  const bool classifies = value.data.kind == "classification";
  return classifies != (value.train.loss == "cross_entropy") ||
         (classifies && facts.has(BlockKind::kOffset));
}

void mend_loss(Case& value, Dice&) {
  value.data.kind = "regression";
  value.train.loss = "mse";
}

bool mean_of_nothing(const Facts& facts) {
  if (facts.value.train.loss != "mse" && facts.value.train.loss != "cross_entropy") return false;
  for (const auto& sizes : output_shapes(facts.value.model, facts.value.data)) {
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) return true;
  }
  return false;
}

void mend_mean_of_nothing(Case& value, Dice&) {
  value.data.kind = "regression";
  value.train.loss = "dot";
}

bool optimizer_does_not_take_it(const Facts& facts) {
  const OptimizerSpec& optimizer = facts.value.train.optimizer;
  if (facts.complex && optimizer.kind != "sgd") return true;
  return facts.sparse && (optimizer.weight_decay != 0.0 ||
                          (optimizer.kind != "sgd" && optimizer.kind != "adagrad"));
}

void mend_optimizer(Case& value, Dice&) {
  const double lr = value.train.optimizer.lr;
  value.train.optimizer = OptimizerSpec();
  value.train.optimizer.lr = lr;
}

bool mean_over_is_wrong(const Facts& facts) {
  const TrainSpec& train = facts.value.train;
  return train.mean_over != "micro_batch" &&
         (train.reduction != "mean" || train.forwards_per_backward > 1);
}

bool shared_masks(const Facts& facts) { return facts.has(BlockKind::kDropout) && facts.exchanges; }

bool steps_of_rank_are_wrong(const Facts& facts) {
  const TrainSpec& train = facts.value.train;
  const std::vector<std::int64_t>& steps = train.steps_of_rank;
  return !steps.empty() && (static_cast<std::int64_t>(steps.size()) != facts.value.world.ranks ||
                            *std::max_element(steps.begin(), steps.end()) != train.steps);
}

void mend_steps_of_rank(Case& value, Dice& dice) {
  std::vector<std::int64_t>& steps = value.train.steps_of_rank;
  steps.resize(static_cast<std::size_t>(value.world.ranks), value.train.steps);
  for (std::int64_t& count : steps) count = std::min(count, value.train.steps);
  steps[static_cast<std::size_t>(dice.below(value.world.ranks))] = value.train.steps;
}

// Every number that is divided by is a power of two, and nothing takes a root.
bool is_not_exact(const Facts& facts) {
  const Case& value = facts.value;
  const TrainSpec& train = value.train;
  if (!value.data.exact) return false;
  if (!is_power_of_two(value.world.ranks) || !is_power_of_two(train.micro_batches) ||
      !is_power_of_two(facts.share) || train.optimizer.kind != "sgd" || train.clip_norm > 0.0 ||
      train.optimizer.weight_decay != 0.0 || train.backwards_per_forward == 3) {
    return true;
  }
  if (train.loss != "dot" && train.loss != "mse") return true;
  for (const auto& sizes : output_shapes(value.model, value.data)) {
    if (train.loss == "mse" && !is_power_of_two(numel_of(sizes))) return true;
  }
  if (!hook_averages(value)) return true;
  for (std::int64_t step = 0; step < train.steps && value.ddp.join == "divide_by_active"; ++step) {
    const std::vector<std::int64_t>& steps = train.steps_of_rank;
    const auto active =
        std::count_if(steps.begin(), steps.end(), [&](std::int64_t count) { return count > step; });
    if (!is_power_of_two(active)) return true;
  }
  return any_event(facts.value, [](const AtSpec& at) {
    return at.samples || at.ascend > 0.0 || at.leave || (at.lr && *at.lr * 8 != int(*at.lr * 8)) ||
           (at.micro_batches && !is_power_of_two(*at.micro_batches));
  });
}

// Significands are used up by depth, steps and squares; see Note [Exact data].
bool outgrows_exactness(const Facts& facts) {
  const Case& value = facts.value;
  if (!value.data.exact) return false;
  std::int64_t depth = 0;
  for (const auto& stage : facts.plan.stages) {
    const bool multiplies = std::any_of(stage.begin(), stage.end(), [&](std::int64_t block) {
      return !block_parameters(facts.plan.blocks[static_cast<std::size_t>(block)].spec).empty();
    });
    depth += multiplies ? 1 : 0;
  }
  const std::int64_t room = value.model.dtype == "float64" ? 6 : 3;
  const std::int64_t taken = depth * value.train.steps * (value.train.loss == "mse" ? 2 : 1);
  return taken > room;
}

// Learning rates that suit exact numbers let others grow without end.
void give_up_exactness(Case& value) {
  value.data.exact = false;
  value.train.optimizer.lr = 0.01;
  for (AtSpec& at : value.at) {
    if (at.lr) at.lr = 0.02;
  }
}

bool schedule_is_too_large(const Facts& facts) {
  const Case& value = facts.value;
  if (value.schedule.policy != "exhaustive") return false;
  const TrainSpec& train = value.train;
  return value.world.ranks != 2 || train.steps > 1 || train.micro_batches > 1 ||
         train.forwards_per_backward > 1 || facts.plan.slots.size() > 2 || facts.exchanges ||
         facts.buffers || facts.sparse || !value.at.empty() || value.ddp.join != "off" ||
         value.ddp.checks != "off" || value.ddp.find_unused_parameters || train.agree != "never" ||
         value.ddp.hook != "none";
}

bool searches_a_launch(const Facts& facts) {
  return facts.value.launch.is_asked_for() && facts.value.schedule.policy == "exhaustive";
}

bool do_not_meet(const Facts& facts) { return !all_meet(facts.value); }

}  // namespace

const std::vector<Rule>& shape_rules() {
  static const std::vector<Rule> rules = {
      {"nothing is trained (A3)", trains_nothing, mend_training},
      {"batches that cannot be shared out", batch_is_wrong, mend_batch},
      {"too few samples for a batch", samples_are_few, mend_samples},
      {"a loss that does not fit the targets", loss_is_wrong, mend_loss},
      {"a mean over no element", mean_of_nothing, mend_mean_of_nothing},
      {"an optimizer that takes no such gradients", optimizer_does_not_take_it, mend_optimizer},
      {"mean_over without a mean", mean_over_is_wrong,
       [](Case& value, Dice&) { value.train.mean_over = "micro_batch"; }},
      {"masks of ranks whose forwards depend on each other", shared_masks,
       [](Case& value, Dice&) { replace_kind(value, "dropout", "identity"); }},
      {"inputs for other ranks than there are", steps_of_rank_are_wrong, mend_steps_of_rank},
      {"numbers that round", is_not_exact, [](Case& value, Dice&) { give_up_exactness(value); }},
      {"exact numbers that outgrow their significand", outgrows_exactness,
       [](Case& value, Dice&) {
         if (value.train.steps > 1 && value.train.steps_of_rank.empty() && value.at.empty()) {
           --value.train.steps;
           value.schedule.first_step = -1;
         } else if (value.train.loss == "mse") {
           value.train.loss = "dot";
         } else {
           give_up_exactness(value);
         }
       }},
      {"more schedules than can be walked through", schedule_is_too_large,
       [](Case& value, Dice&) { value.schedule.policy = "random"; }},
      {"a launch in an exhaustive search", searches_a_launch,
       [](Case& value, Dice&) { value.schedule.policy = "random"; }},
      {"processes that do not meet", do_not_meet,
       [](Case& value, Dice&) { value.launch = LaunchSpec(); }},
  };
  return rules;
}

}  // namespace lockstep::harness::fuzz
