// SPDX-License-Identifier: Apache-2.0
// torch::optim behind one small face, with its state readable as named tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/case.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace lockstep::harness {

/// SGD, Adam, AdamW, Adagrad or RMSprop as torch::optim computes them, one group of parameters.
/// Threads: one at a time.
class Optimizer {
 public:
  /// `parameters` in the order of the model; those without gradient at a step are left alone.
  /// Errors: UsageError for an unknown kind or options out of range.
  Optimizer(const OptimizerSpec& spec, std::vector<at::Tensor> parameters);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void step();
  /// As LibTorch's optimizers do it: gradients are detached in place and zeroed.
  void zero_grad();
  /// State and learning rate. `load` takes those that an optimizer of the same kind over as many
  /// parameters has saved. Errors: c10::Error for any other.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);
  /// Errors: UsageError if `lr` is negative or not finite.
  void set_lr(double lr);

  /// State tensors by role, for parameter `index`; roles in a fixed order that depends on the
  /// OptimizerSpec alone, undefined tensors where no state exists yet:
  /// - sgd: "momentum_buffer" with momentum, else nothing
  /// - adam, adamw: "exp_avg", "exp_avg_sq", "max_exp_avg_sq" with amsgrad, "step"
  /// - adagrad: "sum", "step"
  /// - rmsprop: "square_avg", "momentum_buffer" with momentum, "step"
  /// "step" is an int64 scalar. The tensors are the optimizer's own: the next step() changes them.
  std::vector<std::pair<std::string, at::Tensor>> state(std::int64_t index) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::harness
