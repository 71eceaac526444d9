// SPDX-License-Identifier: Apache-2.0
// Draws a model, a script and the options of DDP.
#include "harness/fuzz/draw.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/check.h"
#include "harness/fuzz/generator.h"
#include "harness/fuzz/predict.h"
#include "harness/model.h"

namespace lockstep::harness::fuzz {

namespace {

// One of `values`, shrinking towards the first.
template <typename T>
T one_of(const std::vector<T>& values) {
  return values[*rc::gen::inRange<std::size_t>(0, values.size())];
}

bool chance() { return *rc::gen::arbitrary<bool>(); }

// stem, branches of equal width that are added up, head; only branches are ever left out.
ModelSpec random_graph() {
  ModelSpec model;
  model.kind = "graph";
  const auto width = *rc::gen::inRange<int>(1, 7);
  const auto num_branches = *rc::gen::inRange<int>(1, 4);
  model.blocks.emplace_back("stem", "linear 3 " + std::to_string(width));
  model.forward.push_back({"stem"});
  std::vector<std::string> stage;
  for (int i = 0; i < num_branches; ++i) {
    const std::string name = "branch" + std::to_string(i);
    const std::string size = std::to_string(width);
    model.blocks.emplace_back(name,
                              one_of<std::string>({"linear " + size + " " + size, "scale " + size,
                                                   "linear " + size + " " + size + " no_bias",
                                                   "linear " + size + " " + size + " checkpoint"}));
    stage.push_back(name);
  }
  model.forward.push_back(stage);
  if (chance()) {
    model.blocks.emplace_back("act", "tanh");
    model.forward.push_back({"act"});
  }
  if (width > 1 && chance()) {
    model.blocks.emplace_back("norm", "layer_norm " + std::to_string(width));
    model.forward.push_back({"norm"});
  }
  if (chance()) {
    model.blocks.emplace_back("spare", "linear 2 2");  // exists, never used
  }
  model.blocks.emplace_back("head", "linear " + std::to_string(width) + " 2");
  model.forward.push_back({"head"});
  return model;
}

bool has_block(const ModelSpec& model, const std::string& name) {
  return std::any_of(model.blocks.begin(), model.blocks.end(),
                     [&](const auto& block) { return block.first == name; });
}

void add_routing(Case& value) {
  const auto num_events = *rc::gen::inRange<int>(0, 4);
  for (int i = 0; i < num_events; ++i) {
    AtSpec at;
    at.ranks = {*rc::gen::inRange<std::int64_t>(0, value.world.ranks)};
    if (chance()) {
      at.steps = {*rc::gen::inRange<std::int64_t>(0, value.train.steps)};
    }
    if (chance()) {
      at.micro_batch = *rc::gen::inRange<std::int64_t>(0, value.train.micro_batches);
    }
    at.skip = {
        value.model.forward[1][*rc::gen::inRange<std::size_t>(0, value.model.forward[1].size())]};
    value.at.push_back(at);
  }
}

// What other blocks there may be: one of another dtype, statistics over all ranks.
void vary_blocks(Case& value) {
  const bool statistics = value.at.empty() && value.train.micro_batches == 1 &&
                          value.train.forwards_per_backward == 1 &&
                          value.world.ranks * value.train.batch_per_rank > 2;
  for (auto& [name, text] : value.model.blocks) {
    if (name == "head" && value.model.dtype == "float32" && chance()) {
      text += " float64";
    }
    if (name == "norm" && statistics && chance()) {
      text = "sync_batch_norm " + text.substr(text.find(' ') + 1);
    }
  }
}

// Some ranks have fewer steps than others, or none.
void add_uneven_inputs(Case& value) {
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    // A static graph is recorded by all ranks together.
    value.train.steps_of_rank.push_back(
        *rc::gen::inRange<std::int64_t>(value.ddp.static_graph ? 1 : 0, value.train.steps + 1));
  }
  value.train.steps_of_rank[*rc::gen::inRange<std::size_t>(
      0, static_cast<std::size_t>(value.world.ranks))] = value.train.steps;
  // An average that is reduced again together with zeros is no mean of the batch.
  const bool reduces_again = value.train.sync_on == "every" && value.train.micro_batches > 1;
  value.ddp.join = reduces_again || chance() ? "divide_by_active" : "divide_by_initial";
}

Case random_script(const Space& space) {
  Case value;
  value.title = "Found by fuzzing";
  value.seed = *rc::gen::inRange<std::uint64_t>(1, 1000);
  value.world.ranks = *rc::gen::inRange<std::int64_t>(1, space.ranks_max + 1);
  value.schedule.policy = one_of<std::string>({"round_robin", "random", "pct"});
  value.model = random_graph();
  value.model.dtype = one_of<std::string>({"float32", "float64"});
  value.train.steps = *rc::gen::inRange<std::int64_t>(1, 5);
  value.train.micro_batches = *rc::gen::inRange<std::int64_t>(1, 4);
  value.train.forwards_per_backward = *rc::gen::inRange<std::int64_t>(1, 3);
  value.train.batch_per_rank = value.train.micro_batches * value.train.forwards_per_backward *
                               *rc::gen::inRange<std::int64_t>(1, 3);
  value.train.sync_on = one_of<std::string>({"last", "every"});
  value.train.zero_grad = one_of<std::string>({"none", "zero"});
  value.train.optimizer.kind = one_of<std::string>({"sgd", "adam", "adamw", "adagrad", "rmsprop"});
  value.train.optimizer.lr = 0.05;
  value.data.shuffle = chance();
  value.ddp.first_bucket_cap_bytes = one_of<std::int64_t>({1 << 20, 1, 20, 64});
  value.ddp.bucket_cap_bytes = one_of<std::int64_t>({25 << 20, 1, 24, 100});
  value.ddp.gradient_as_bucket_view = chance();
  value.ddp.find_unused_parameters = true;
  const bool routed = chance();
  if (routed) {
    add_routing(value);
  } else if (!has_block(value.model, "spare")) {
    value.ddp.find_unused_parameters = chance();
  }
  if (value.at.empty() && chance()) {
    value.ddp.static_graph = true;
    value.ddp.find_unused_parameters = false;
  }
  vary_blocks(value);
  // Zeroed gradients of what is out of use are lost with a reload.
  if ((value.train.zero_grad == "none" || value.at.empty()) && chance()) {
    AtSpec at;
    at.steps = {*rc::gen::inRange<std::int64_t>(0, value.train.steps)};
    at.reload = true;
    value.at.push_back(at);
  } else if (!harness::uses_sync_batch_norm(value.model) &&
             value.train.forwards_per_backward == 1 && chance()) {
    add_uneven_inputs(value);
  }
  return value;
}

}  // namespace

Case draw_script(const Space& space, std::uint64_t seed, std::uint64_t index) {
  constexpr int kSize = 50;
  constexpr std::uint64_t kTriesMax = 100;
  for (std::uint64_t attempt = 0; attempt < kTriesMax; ++attempt) {
    rc::Random random(rc::Random::Key{seed, index, attempt, 0});
    Case value = rc::gen::exec([&] { return random_script(space); })(random, kSize).value();
    if (expect_as_predicted(value)) return value;
  }
  throw InvariantError("no script could be drawn");
}

}  // namespace lockstep::harness::fuzz
