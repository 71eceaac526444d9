// SPDX-License-Identifier: Apache-2.0
// torch::optim's optimizers, and their state by role.
#include "harness/optimizer.h"

#include <torch/optim.h>
#include <torch/types.h>

#include <cmath>
#include <iterator>
#include <type_traits>
#include <utility>

#include "core/check.h"
#include "core/torch_compat.h"

namespace lockstep::harness {
namespace {

using StateMap = std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())>;
using StateKey = StateMap::key_type;

// Of the group: LibTorch up to 1.13 writes the options of groups and does not read them.
constexpr const char* kLearningRate = "learning_rate";

bool in_unit_range(double value) { return value >= 0.0 && value < 1.0; }

void check_options(const OptimizerSpec& spec) {
  LOCKSTEP_USAGE(std::isfinite(spec.lr) && spec.lr >= 0.0, "a learning rate of {} is not allowed",
                 spec.lr);
  LOCKSTEP_USAGE(std::isfinite(spec.momentum) && spec.momentum >= 0.0,
                 "a momentum of {} is not allowed", spec.momentum);
  LOCKSTEP_USAGE(std::isfinite(spec.weight_decay) && spec.weight_decay >= 0.0,
                 "a weight decay of {} is not allowed", spec.weight_decay);
  LOCKSTEP_USAGE(std::isfinite(spec.lr_decay) && spec.lr_decay >= 0.0,
                 "an lr_decay of {} is not allowed", spec.lr_decay);
  LOCKSTEP_USAGE(std::isfinite(spec.eps) && spec.eps >= 0.0, "an eps of {} is not allowed",
                 spec.eps);
  LOCKSTEP_USAGE(in_unit_range(spec.alpha), "alpha is from 0 to below 1, not {}", spec.alpha);
  LOCKSTEP_USAGE(
      spec.betas.size() == 2 && in_unit_range(spec.betas[0]) && in_unit_range(spec.betas[1]),
      "betas are two numbers from 0 to below 1");
  LOCKSTEP_USAGE(!spec.nesterov || (spec.momentum > 0.0 && spec.dampening == 0.0),
                 "nesterov needs a momentum and no dampening");
}

template <typename Options>
Options adam_options(const OptimizerSpec& spec) {
  return Options(spec.lr)
      .betas({spec.betas[0], spec.betas[1]})
      .eps(spec.eps)
      .weight_decay(spec.weight_decay)
      .amsgrad(spec.amsgrad);
}

}  // namespace

struct Optimizer::Impl {
  enum class Kind { kSgd, kAdam, kAdamW, kAdagrad, kRmsprop };

  /// A parameter with what finding and showing its state takes.
  struct Tracked {
    StateKey key;
    at::Tensor step_count;  ///< int64 scalar, refreshed when it is asked for
  };
  using State = std::vector<std::pair<std::string, at::Tensor>>;

  Impl(const OptimizerSpec& spec, std::vector<at::Tensor> parameters)
      : has_momentum(spec.momentum != 0.0), amsgrad(spec.amsgrad) {
    for (const at::Tensor& parameter : parameters) {
      tracked.push_back(
          {compat::optimizer_state_key<StateKey>(parameter), torch::zeros({}, torch::kLong)});
    }
    if (spec.kind == "sgd") {
      kind = Kind::kSgd;
      optimizer = std::make_unique<torch::optim::SGD>(std::move(parameters),
                                                      torch::optim::SGDOptions(spec.lr)
                                                          .momentum(spec.momentum)
                                                          .dampening(spec.dampening)
                                                          .weight_decay(spec.weight_decay)
                                                          .nesterov(spec.nesterov));
    } else if (spec.kind == "adam") {
      kind = Kind::kAdam;
      optimizer = std::make_unique<torch::optim::Adam>(
          std::move(parameters), adam_options<torch::optim::AdamOptions>(spec));
    } else if (spec.kind == "adamw") {
      kind = Kind::kAdamW;
      optimizer = std::make_unique<torch::optim::AdamW>(
          std::move(parameters), adam_options<torch::optim::AdamWOptions>(spec));
    } else if (spec.kind == "adagrad") {
      kind = Kind::kAdagrad;
      optimizer = std::make_unique<torch::optim::Adagrad>(std::move(parameters),
                                                          torch::optim::AdagradOptions(spec.lr)
                                                              .lr_decay(spec.lr_decay)
                                                              .weight_decay(spec.weight_decay)
                                                              .eps(spec.eps));
    } else {
      LOCKSTEP_USAGE(spec.kind == "rmsprop",
                     "\"{}\" is none of \"sgd\", \"adam\", \"adamw\", \"adagrad\", \"rmsprop\"",
                     spec.kind);
      kind = Kind::kRmsprop;
      optimizer = std::make_unique<torch::optim::RMSprop>(std::move(parameters),
                                                          torch::optim::RMSpropOptions(spec.lr)
                                                              .alpha(spec.alpha)
                                                              .eps(spec.eps)
                                                              .weight_decay(spec.weight_decay)
                                                              .momentum(spec.momentum));
    }
  }

  /// The state object of parameter `index`; null before its first step.
  template <typename ParamState>
  const ParamState* find(const Tracked& entry) const {
    const auto& states = std::as_const(*optimizer).state();
    const auto found = states.find(entry.key);
    return found == states.end() ? nullptr : static_cast<const ParamState*>(found->second.get());
  }

  template <typename ParamState>
  static at::Tensor step_count(const ParamState* found, const Tracked& entry) {
    if (found == nullptr) {
      return {};
    }
    *entry.step_count.data_ptr<std::int64_t>() = found->step();
    return entry.step_count;
  }

  template <typename ParamState>
  State adam_state(const Tracked& entry) const {
    const auto* const found = find<ParamState>(entry);
    State result;
    result.reserve(4);
    result.emplace_back("exp_avg", found != nullptr ? found->exp_avg() : at::Tensor());
    result.emplace_back("exp_avg_sq", found != nullptr ? found->exp_avg_sq() : at::Tensor());
    if (amsgrad) {
      result.emplace_back("max_exp_avg_sq",
                          found != nullptr ? found->max_exp_avg_sq() : at::Tensor());
    }
    result.emplace_back("step", step_count(found, entry));
    return result;
  }

  State sgd_state(const Tracked& entry) const {
    if (!has_momentum) {
      return {};
    }
    const auto* const found = find<torch::optim::SGDParamState>(entry);
    return {{"momentum_buffer", found != nullptr ? found->momentum_buffer() : at::Tensor()}};
  }

  State adagrad_state(const Tracked& entry) const {
    const auto* const found = find<torch::optim::AdagradParamState>(entry);
    return {{"sum", found != nullptr ? found->sum() : at::Tensor()},
            {"step", step_count(found, entry)}};
  }

  State rmsprop_state(const Tracked& entry) const {
    const auto* const found = find<torch::optim::RMSpropParamState>(entry);
    State result;
    result.reserve(3);
    result.emplace_back("square_avg", found != nullptr ? found->square_avg() : at::Tensor());
    if (has_momentum) {
      result.emplace_back("momentum_buffer",
                          found != nullptr ? found->momentum_buffer() : at::Tensor());
    }
    result.emplace_back("step", step_count(found, entry));
    return result;
  }

  void load(torch::serialize::InputArchive& archive) {
    optimizer->load(archive);
    // LibTorch makes an empty entry for a parameter that was never stepped, and then steps through
    // it.
    auto& states = optimizer->state();
    for (auto entry = states.begin(); entry != states.end();) {
      entry = entry->second == nullptr ? states.erase(entry) : std::next(entry);
    }
  }

  Kind kind = Kind::kSgd;
  bool has_momentum;
  bool amsgrad;
  std::vector<Tracked> tracked;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

Optimizer::Optimizer(const OptimizerSpec& spec, std::vector<at::Tensor> parameters) {
  check_options(spec);
  impl_ = std::make_unique<Impl>(spec, std::move(parameters));
}

Optimizer::~Optimizer() = default;

void Optimizer::step() { impl_->optimizer->step(); }

void Optimizer::zero_grad() { impl_->optimizer->zero_grad(); }

void Optimizer::save(torch::serialize::OutputArchive& archive) const {
  impl_->optimizer->save(archive);
  const double lr = impl_->optimizer->param_groups().front().options().get_lr();
  archive.write(kLearningRate, torch::full({}, lr, torch::kDouble), /*is_buffer=*/true);
}

void Optimizer::load(torch::serialize::InputArchive& archive) {
  impl_->load(archive);
  at::Tensor lr;
  archive.read(kLearningRate, lr, /*is_buffer=*/true);
  set_lr(lr.item<double>());
}

void Optimizer::set_lr(double lr) {
  LOCKSTEP_USAGE(std::isfinite(lr) && lr >= 0.0, "a learning rate of {} is not allowed", lr);
  for (auto& group : impl_->optimizer->param_groups()) {
    group.options().set_lr(lr);
  }
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state(std::int64_t index) const {
  LOCKSTEP_USAGE(index >= 0 && index < static_cast<std::int64_t>(impl_->tracked.size()),
                 "the optimizer has no parameter {}", index);
  const Impl::Tracked& entry = impl_->tracked[static_cast<std::size_t>(index)];
  switch (impl_->kind) {
    case Impl::Kind::kSgd:
      return impl_->sgd_state(entry);
    case Impl::Kind::kAdam:
      return impl_->adam_state<torch::optim::AdamParamState>(entry);
    case Impl::Kind::kAdamW:
      return impl_->adam_state<torch::optim::AdamWParamState>(entry);
    case Impl::Kind::kAdagrad:
      return impl_->adagrad_state(entry);
    case Impl::Kind::kRmsprop:
      return impl_->rmsprop_state(entry);
  }
  throw InvariantError("unknown optimizer kind");
}

}  // namespace lockstep::harness
