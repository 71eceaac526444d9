// SPDX-License-Identifier: Apache-2.0
// Draws world, training loop, data and optimizer.
#include <algorithm>
#include <string>
#include <vector>

#include "harness/fuzz/draw/draw_topics.h"
#include "harness/model.h"

namespace lockstep::harness::fuzz {
namespace {

constexpr std::int64_t kSamplesPerForwardMax = 3;

void draw_optimizer(OptimizerSpec& optimizer, bool exact, Dice& dice) {
  optimizer = OptimizerSpec();
  if (exact) {
    optimizer.lr = dice.one_of({0.125, 0.25, 0.5});
    optimizer.momentum = dice.chance(20) ? 0.5 : 0.0;
    return;
  }
  optimizer.kind = dice.one_of({"sgd", "sgd", "adam", "adamw", "adagrad", "rmsprop"});
  optimizer.lr = dice.one_of({0.05, 0.01, 0.005});
  if (optimizer.kind == "sgd" || optimizer.kind == "rmsprop") {
    optimizer.momentum = dice.one_of({0.0, 0.9, 0.5});
  }
  if (optimizer.kind == "sgd" && optimizer.momentum > 0.0) {
    optimizer.nesterov = dice.chance(30);
    optimizer.dampening = !optimizer.nesterov && dice.chance(30) ? 0.25 : 0.0;
  }
  optimizer.weight_decay = dice.chance(25) ? dice.one_of({0.01, 0.1}) : 0.0;
  if (optimizer.kind == "adam" || optimizer.kind == "adamw") {
    if (dice.chance(30)) optimizer.betas = {0.8, 0.95};
    optimizer.amsgrad = dice.chance(30);
  }
  if (optimizer.kind != "sgd" && dice.chance(25)) optimizer.eps = 1e-3;
  if (optimizer.kind == "rmsprop" && dice.chance(30)) optimizer.alpha = 0.9;
  if (optimizer.kind == "adagrad" && dice.chance(30)) optimizer.lr_decay = 0.1;
}

// Classes need heads that yield at least two of them.
bool may_classify(const Case& value) {
  const auto shapes = output_shapes(value.model, value.data);
  return std::all_of(shapes.begin(), shapes.end(), [](const std::vector<std::int64_t>& sizes) {
    return sizes.size() <= 2 && sizes.back() >= 2;
  });
}

void draw_loss(Case& value, Dice& dice) {
  TrainSpec& train = value.train;
  DataSpec& data = value.data;
  data.kind =
      !data.exact && dice.chance(20) && may_classify(value) ? "classification" : "regression";
  if (data.kind == "classification") {
    train.loss = "cross_entropy";
  } else if (data.exact) {
    train.loss = dice.chance(75) ? "dot" : "mse";
  } else {
    train.loss = dice.one_of(
        {"mse", "mse", "mse", "mse", "dot", "dot", "input_gradient", "anchored_input_gradient"});
  }
  train.reduction = dice.chance(20) ? "sum" : "mean";
  // The other way round it is a wrong mean, on all ranks alike.
  train.scale_loss_by_world_size = (train.reduction == "sum") == dice.chance(85);
  train.mean_over = train.reduction == "mean"
                        ? dice.one_of({"micro_batch", "micro_batch", "window", "all", "all"})
                        : "micro_batch";
}

// Few enough samples that epochs end in the middle of a script, and ranks have to be made even.
void draw_data(Case& value, Dice& dice) {
  DataSpec& data = value.data;
  const std::int64_t ranks = value.world.ranks;
  const std::int64_t batch = value.train.batch_per_rank;
  data.drop_last = dice.chance(30);
  data.shuffle = dice.chance(70);
  const std::int64_t least = data.drop_last ? ranks * batch : ranks * (batch - 1) + 1;
  data.samples = least + dice.below(2 * ranks * batch + 1);
}

}  // namespace

void draw_world(Case& value, const Space& space, Dice& dice) {
  WorldSpec& world = value.world;
  world = WorldSpec();
  value.data.exact = dice.chance(18);
  // Small worlds come up more often: they are quicker, and most of what goes wrong shows in them.
  world.ranks = 1;
  const std::int64_t most = std::max<std::int64_t>(1, space.ranks_max);
  if (!dice.chance(8))
    world.ranks = dice.between(1, dice.chance(75) ? std::min<std::int64_t>(most, 3) : most);
  while (value.data.exact && (world.ranks & (world.ranks - 1)) != 0) --world.ranks;
  world.check_tags = !dice.chance(15);
}

void draw_training(Case& value, const Space&, Dice& dice) {
  TrainSpec& train = value.train;
  train = TrainSpec();
  const bool exact = value.data.exact;
  train.steps = exact ? dice.between(1, value.model.dtype == "float64" ? 3 : 2)
                      : dice.one_of({1, 2, 2, 3, 3, 4});
  train.micro_batches = dice.chance(50) ? 1 : exact ? dice.one_of({2, 4}) : dice.between(2, 3);
  train.forwards_per_backward = dice.chance(75) ? 1 : exact ? 2 : dice.between(2, 3);
  train.batch_per_rank = train.micro_batches * train.forwards_per_backward *
                         (exact ? dice.one_of({1, 2}) : dice.between(1, kSamplesPerForwardMax));
  train.backward_from = train.forwards_per_backward > 1 && dice.chance(30) ? "each" : "sum";
  train.backwards_per_forward =
      train.backward_from == "sum" && dice.chance(10) ? dice.between(2, 3) : 1;
  train.sync_on = dice.one_of({"last", "last", "last", "every", "every", "never"});
  train.no_sync_covers = dice.one_of({"both", "both", "forward", "backward"});
  train.zero_grad = dice.one_of({"none", "none", "zero", "zero", "optimizer", "never"});
  train.clip_norm = !exact && dice.chance(20) ? dice.one_of({0.01, 0.5, 5.0}) : 0.0;
  train.optimizer_before_wrapping = dice.chance(30);
  train.agree = dice.chance(15) ? dice.one_of({"before_forward", "after_forward", "after_backward"})
                                : "never";
  draw_loss(value, dice);
  draw_optimizer(train.optimizer, exact, dice);
  // A step by the sum over all samples is as many times as long.
  if (train.reduction == "sum" && !exact) train.optimizer.lr = 0.0005;
  draw_data(value, dice);
}

}  // namespace lockstep::harness::fuzz
