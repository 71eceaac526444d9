// SPDX-License-Identifier: Apache-2.0
// torch::optim behind one small face, with its state readable as named tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "harness/case.h"

namespace lockstep::harness {

class Optimizer {
 public:
  /// `parameters` in the order of the model; those without gradient at a step are left alone.
  Optimizer(const OptimizerSpec& spec, std::vector<at::Tensor> parameters);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  void step();
  void set_lr(double lr);

  /// State tensors by role ("momentum_buffer", "exp_avg", ..., "step" as an int64 scalar), for
  /// parameter `index`; roles in a fixed order, undefined tensors where no state exists yet.
  std::vector<std::pair<std::string, at::Tensor>> state(std::int64_t index) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::harness
