// SPDX-License-Identifier: Apache-2.0
// Contradictions in [train], [ddp] and exactness; and the order in which all topics are checked.
#include "harness/scenario/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "harness/model.h"
#include "harness/program.h"

namespace lockstep::harness {

namespace {

bool is_power_of_two(std::int64_t value) { return value > 0 && (value & (value - 1)) == 0; }

/// Significant bits of a finite number: 0.125 and 4 have one, 0.375 has two.
int significant_bits(double value) {
  int exponent = 0;
  double mantissa = std::abs(std::frexp(value, &exponent));
  int bits = 0;
  while (mantissa != 0.0) {
    mantissa = 2.0 * mantissa - std::floor(2.0 * mantissa);
    ++bits;
  }
  return bits;
}

constexpr int kExactBits = 8;

void check_optimizer(const OptimizerSpec& optimizer, std::vector<CaseFinding>& findings) {
  const std::string prefix = "train.optimizer.";
  const OptimizerSpec defaults;
  const std::string& kind = optimizer.kind;
  const auto only_for = [&](const char* key, bool is_default, bool fits, const char* kinds) {
    if (is_default || fits) return;
    findings.push_back(
        {{prefix + key, prefix + "kind"},
         fmt::format("optimizer \"{}\" has no {}; it is an option of {}", kind, key, kinds)});
  };
  const bool adam = kind == "adam" || kind == "adamw";
  only_for("momentum", optimizer.momentum == defaults.momentum, kind == "sgd" || kind == "rmsprop",
           "sgd and rmsprop");
  only_for("dampening", optimizer.dampening == defaults.dampening, kind == "sgd", "sgd");
  only_for("nesterov", optimizer.nesterov == defaults.nesterov, kind == "sgd", "sgd");
  only_for("betas", optimizer.betas == defaults.betas, adam, "adam and adamw");
  only_for("eps", optimizer.eps == defaults.eps, kind != "sgd", "all but sgd");
  only_for("alpha", optimizer.alpha == defaults.alpha, kind == "rmsprop", "rmsprop");
  only_for("lr_decay", optimizer.lr_decay == defaults.lr_decay, kind == "adagrad", "adagrad");
  only_for("amsgrad", optimizer.amsgrad == defaults.amsgrad, adam, "adam and adamw");
  if (kind == "sgd" && optimizer.nesterov &&
      (optimizer.momentum <= 0.0 || optimizer.dampening != 0.0)) {
    findings.push_back(
        {{prefix + "nesterov", prefix + "momentum", prefix + "dampening"},
         fmt::format("nesterov needs momentum above 0 and no dampening, but momentum = {} and "
                     "dampening = {}; set momentum or leave nesterov out",
                     optimizer.momentum, optimizer.dampening)});
  }
}

void check_dyadic(double value, const std::string& key, std::vector<CaseFinding>& findings) {
  if (significant_bits(value) > kExactBits) {
    findings.push_back(
        {{key, "data.exact"},
         fmt::format("data.exact = true, but {} = {} has more than {} significant bits; use a sum "
                     "of few powers of two, such as 0.125, or leave out data.exact",
                     key, value, kExactBits)});
  }
}

void check_divisor(std::int64_t divisor, const std::string& key, const std::string& what,
                   std::vector<CaseFinding>& findings) {
  if (!is_power_of_two(divisor)) {
    findings.push_back({{key, "data.exact"},
                        fmt::format("data.exact = true, but {} is {}, and dividing by it rounds; "
                                    "use a power of two or leave out data.exact",
                                    what, divisor)});
  }
}

void check_forwards(const TrainSpec& train, std::vector<CaseFinding>& findings) {
  const std::int64_t micro_samples = train.batch_per_rank / train.micro_batches;
  if (micro_samples % train.forwards_per_backward != 0) {
    findings.push_back(
        {{"train.forwards_per_backward", "train.micro_batches", "train.batch_per_rank"},
         fmt::format("forwards_per_backward = {} does not divide the {} samples of a micro-batch; "
                     "every forward has the same number of samples",
                     train.forwards_per_backward, micro_samples)});
  }
  if (train.backward_from == "each" && train.forwards_per_backward == 1) {
    findings.push_back({{"train.backward_from", "train.forwards_per_backward"},
                        "backward_from = \"each\" needs several forwards; expected "
                        "train.forwards_per_backward above 1"});
  }
}

// What LibTorch's optimizers make of gradients that are not dense and real.
void check_gradient_kinds(const Case& value, std::vector<CaseFinding>& findings) {
  const OptimizerSpec& optimizer = value.train.optimizer;
  const std::vector<std::string> sparse = sparse_parameters(value.model);
  if (!sparse.empty()) {
    if (optimizer.kind != "sgd" && optimizer.kind != "adagrad") {
      findings.push_back({{"train.optimizer.kind", "model.blocks"},
                          fmt::format("optimizer \"{}\" takes no sparse gradients, which {} has; "
                                      "expected sgd or adagrad",
                                      optimizer.kind, sparse.front())});
    }
    if (optimizer.weight_decay != 0.0) {
      findings.push_back({{"train.optimizer.weight_decay", "model.blocks"},
                          fmt::format("a weight decay would make the sparse gradient of {} dense; "
                                      "leave one of them out",
                                      sparse.front())});
    }
    if (!reduces_in_backward(value.ddp)) {
      findings.push_back({{"ddp.sync", "model.blocks"},
                          fmt::format("sync \"{}\" reduces no sparse gradients, which {} has; "
                                      "expected \"ddp\" or \"torch\"",
                                      value.ddp.sync, sparse.front())});
    }
  }
  const std::vector<std::string> complex = complex_parameters(value.model);
  if (!complex.empty() && optimizer.kind != "sgd") {
    findings.push_back(
        {{"train.optimizer.kind", "model.blocks"},
         fmt::format("optimizer \"{}\" squares gradients, which for the complex {} is "
                     "no size; expected sgd",
                     optimizer.kind, complex.front())});
  }
  if ((uses_sync_batch_norm(value.model) || uses_all_to_all(value.model)) &&
      uses_dropout(value.model)) {
    findings.push_back({{"model.blocks"},
                        "dropout and sync_batch_norm or all_to_all in one model: the references "
                        "run the ranks' forwards block by block, and each rank's random numbers in "
                        "one piece; leave one of them out"});
  }
  const std::int64_t samples =
      value.train.batch_per_rank / value.train.micro_batches / value.train.forwards_per_backward;
  if (uses_all_to_all(value.model) && samples % value.world.ranks != 0) {
    findings.push_back({{"train.batch_per_rank", "world.ranks", "model.blocks"},
                        fmt::format("all_to_all cuts a forward's {} samples into one chunk for "
                                    "each of {} ranks; expected a multiple of the ranks",
                                    samples, value.world.ranks)});
  }
}

// What a loss is made of.
void check_loss(const Case& value, std::vector<CaseFinding>& findings) {
  const TrainSpec& train = value.train;
  if (train.mean_over != "micro_batch" &&
      (train.reduction != "mean" || train.forwards_per_backward > 1)) {
    findings.push_back({{"train.mean_over", "train.reduction", "train.forwards_per_backward"},
                        "mean_over says what a mean is over; expected train.reduction = \"mean\" "
                        "and one forward per backward"});
  }
  if (train.backwards_per_forward > 1 && train.backward_from == "each") {
    findings.push_back({{"train.backwards_per_forward", "train.backward_from"},
                        "several backwards over one graph, and one from each forward; expected "
                        "one of them"});
  }
  if (value.data.kind == "classification" && !value.data.targets.empty()) {
    findings.push_back({{"data.targets", "data.kind"},
                        "the targets of a classification are classes, which are not given as "
                        "numbers; leave data.targets out"});
  }
}

// A mean over no element is none.
void check_empty_heads(const Case& value, std::vector<CaseFinding>& findings) {
  if (value.train.loss != "mse" && value.train.loss != "cross_entropy") return;
  for (const std::vector<std::int64_t>& sizes : output_shapes(value.model, value.data)) {
    if (std::find(sizes.begin(), sizes.end(), 0) != sizes.end()) {
      findings.push_back({{"train.loss", "model.blocks"},
                          fmt::format("loss \"{}\" of an output without elements; expected "
                                      "train.loss = \"dot\"",
                                      value.train.loss)});
      return;
    }
  }
}

void check_extras(const DdpSpec& ddp, std::vector<CaseFinding>& findings) {
  DdpSpec ours = ddp;
  ours.sync = "ddp";
  ours.checks = "off";
  if (ddp.sync != "ddp" && ddp.checks != "off") {
    findings.push_back({{"ddp.checks", "ddp.sync"},
                        "checks belong to our DDP; leave them out or use sync = \"ddp\""});
  }
  if (ddp.sync == "torch" ? !ours.peer_can_stand_in() : ddp.sync != "ddp" && ddp.hook != "none") {
    findings.push_back(
        {{"ddp.hook", "ddp.sync"},
         fmt::format(
             "sync \"{}\" has no hook \"{}\"; leave it out or use sync = \"ddp\" (PyTorch's "
             "reducer has all_reduce and fp16_compress)",
             ddp.sync, ddp.hook)});
  }
  if (ddp.join != "off" && !reduces_in_backward(ddp)) {
    findings.push_back(
        {{"ddp.join", "ddp.sync"},
         fmt::format("sync \"{}\" has no join; leave it out or use sync = \"ddp\" or "
                     "\"torch\"",
                     ddp.sync)});
  }
}

void check_uneven_inputs(const Case& value, std::vector<CaseFinding>& findings) {
  const std::vector<std::int64_t>& steps = value.train.steps_of_rank;
  if (steps.empty()) return;
  if (static_cast<std::int64_t>(steps.size()) != value.world.ranks) {
    findings.push_back(
        {{"train.steps_of_rank", "world.ranks"},
         fmt::format("steps_of_rank has {} entries; expected one for each of {} ranks",
                     steps.size(), value.world.ranks)});
  }
  const std::int64_t most = *std::max_element(steps.begin(), steps.end());
  if (most != value.train.steps) {
    findings.push_back(
        {{"train.steps_of_rank", "train.steps"},
         fmt::format("the most in steps_of_rank is {}, but steps = {}; expected them "
                     "to be the same",
                     most, value.train.steps)});
  }
}

void check_joined(const Case& value, std::vector<CaseFinding>& findings) {
  if (value.ddp.join == "off") return;
  for (std::size_t i = 0; i < value.at.size(); ++i) {
    if (value.at[i].reload) {
      findings.push_back(
          {{fmt::format("at.{}.reload", i), "ddp.join"},
           "join goes around the whole loop, and a reload ends it; leave one of them "
           "out"});
    }
  }
}

// In each step: a joined rank is not counted.
void check_active_divisors(const Case& value, std::vector<CaseFinding>& findings) {
  const std::vector<std::int64_t> steps = steps_by_rank(value);
  // The number changes only where some rank runs out.
  std::set<std::int64_t> changes(steps.begin(), steps.end());
  changes.insert(0);
  for (const std::int64_t step : changes) {
    const std::int64_t num_active =
        std::count_if(steps.begin(), steps.end(), [&](std::int64_t count) { return count > step; });
    if (num_active > 0 && !is_power_of_two(num_active)) {
      check_divisor(num_active, "train.steps_of_rank",
                    fmt::format("the number of ranks with inputs in step {}", step), findings);
      return;
    }
  }
}

}  // namespace

std::vector<std::string> KnownNames::parameters_and_blocks() const {
  std::vector<std::string> names = parameters;
  names.insert(names.end(), blocks.begin(), blocks.end());
  return names;
}

void check_training(const Case& value, std::vector<CaseFinding>& findings) {
  const TrainSpec& train = value.train;
  if (train.batch_per_rank % train.micro_batches != 0) {
    findings.push_back({{"train.micro_batches", "train.batch_per_rank"},
                        fmt::format("micro_batches = {} does not divide batch_per_rank = {}; "
                                    "every micro-batch has the same number of samples",
                                    train.micro_batches, train.batch_per_rank)});
  }
  check_forwards(train, findings);
  const bool classification = value.data.kind == "classification";
  if (classification != (train.loss == "cross_entropy")) {
    findings.push_back({{"train.loss", "data.kind"},
                        fmt::format("loss \"{}\" does not fit data.kind = \"{}\"; expected {}",
                                    train.loss, value.data.kind,
                                    classification ? "loss = \"cross_entropy\""
                                                   : "loss = \"mse\" or \"dot\", or data.kind = "
                                                     "\"classification\"")});
  }
  const std::int64_t ranks = value.world.ranks;
  const std::int64_t per_rank =
      value.data.drop_last ? value.data.samples / ranks : (value.data.samples + ranks - 1) / ranks;
  if (per_rank < train.batch_per_rank) {
    findings.push_back(
        {{"data.samples", "train.batch_per_rank", "world.ranks"},
         fmt::format("samples = {} give each of {} ranks {} an epoch, fewer than batch_per_rank = "
                     "{}; expected at least {} samples",
                     value.data.samples, ranks, per_rank, train.batch_per_rank,
                     value.data.drop_last ? ranks * train.batch_per_rank
                                          : ranks * (train.batch_per_rank - 1) + 1)});
  }
  check_optimizer(train.optimizer, findings);
#ifndef LOCKSTEP_WITH_TORCH_REDUCER
  if (value.ddp.sync == "torch") {
    findings.push_back({{"ddp.sync"},
                        "sync \"torch\" was not built: LibTorch's c10d/reducer.hpp was not found "
                        "when this program was configured; expected \"ddp\""});
  }
#endif
  if (value.ddp.static_graph && value.ddp.find_unused_parameters) {
    findings.push_back({{"ddp.static_graph", "ddp.find_unused_parameters"},
                        "static_graph finds unused parameters by itself in the first step; leave "
                        "out find_unused_parameters or static_graph"});
  }
  check_loss(value, findings);
  check_extras(value.ddp, findings);
  check_uneven_inputs(value, findings);
}

void check_exactness(const Case& value, const KnownNames& names,
                     std::vector<CaseFinding>& findings) {
  if (!value.data.exact) return;
  const TrainSpec& train = value.train;
  check_divisor(value.world.ranks, "world.ranks", "world.ranks", findings);
  const bool one_per_rank =
      train.steps_of_rank.empty() ||
      static_cast<std::int64_t>(train.steps_of_rank.size()) == value.world.ranks;
  if (value.ddp.join == "divide_by_active" && one_per_rank) check_active_divisors(value, findings);
  check_divisor(train.micro_batches, "train.micro_batches", "train.micro_batches", findings);
  if (train.reduction == "mean" && train.batch_per_rank % train.micro_batches == 0) {
    check_divisor(train.batch_per_rank / train.micro_batches, "train.batch_per_rank",
                  "the number of samples in a micro-batch", findings);
    if (names.model_is_sound && train.loss == "mse") {
      for (const std::vector<std::int64_t>& sizes : output_shapes(value.model, value.data)) {
        std::int64_t numel = 1;
        for (const std::int64_t size : sizes) numel *= size;
        check_divisor(numel, value.model.kind == "mlp" ? "model.widths" : "model.blocks",
                      "the number of outputs that the mean is taken over", findings);
      }
    }
  }
  const auto never = [&](const std::string& key, const std::string& what) {
    findings.push_back(
        {{key, "data.exact"},
         fmt::format("data.exact = true, but {}; leave it or data.exact out", what)});
  };
  if (train.optimizer.kind != "sgd") {
    never("train.optimizer.kind", fmt::format("{} takes square roots and divides; only sgd can be "
                                              "exact",
                                              train.optimizer.kind));
  }
  if (train.clip_norm > 0.0) never("train.clip_norm", "a gradient norm takes a square root");
  check_dyadic(train.optimizer.lr, "train.optimizer.lr", findings);
  check_dyadic(train.optimizer.momentum, "train.optimizer.momentum", findings);
  check_dyadic(train.optimizer.dampening, "train.optimizer.dampening", findings);
  check_dyadic(train.optimizer.weight_decay, "train.optimizer.weight_decay", findings);
  for (std::size_t i = 0; i < value.at.size(); ++i) {
    if (value.at[i].lr) check_dyadic(*value.at[i].lr, fmt::format("at.{}.lr", i), findings);
  }
}

std::vector<CaseFinding> check_case(const Case& value) {
  std::vector<CaseFinding> findings;
  KnownNames names;
  for (ModelFinding& finding : check_model(value.model, value.data)) {
    findings.push_back({{finding.key}, finding.key + ": " + finding.message});
  }
  names.model_is_sound = findings.empty();
  if (names.model_is_sound) {
    names.blocks = block_names(value.model);
    names.parameters = parameter_names(value.model);
  }
  check_schedule(value, findings);
  check_launch(value, findings);
  check_training(value, findings);
  if (names.model_is_sound) check_gradient_kinds(value, findings);
  if (names.model_is_sound) check_empty_heads(value, findings);
  check_joined(value, findings);
  check_agreement(value, findings);
  check_exactness(value, names, findings);
  check_events(value, names, findings);
  check_faults(value, names, findings);
  check_expectation(value, value.expect, "expect", names, findings);
  if (value.expect_sim) check_expectation(value, *value.expect_sim, "expect.sim", names, findings);
  if (value.expect_gloo) {
    check_expectation(value, *value.expect_gloo, "expect.gloo", names, findings);
  }
  for (std::size_t i = 0; i < value.expect_torch.size(); ++i) {
    const std::string path =
        value.expect_torch.size() == 1 ? "expect.torch" : fmt::format("expect.torch.{}", i);
    check_expectation(value, value.expect_torch[i], path, names, findings);
  }
  return findings;
}

}  // namespace lockstep::harness
