// SPDX-License-Identifier: Apache-2.0
// A module that notes the buffer it was run with.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>
#include <vector>

#include "core/distributed_data_parallel.h"
#include "tests/support/run_ranks.h"

namespace lockstep::test {

using Values = std::vector<double>;

/// rank + 1: something else on each rank.
inline double mine(const LocalCommunicator& communicator) {
  return static_cast<double>(communicator.rank() + 1);
}

/// sum(weight * factor), where weight is a parameter and factor a buffer, both 1 at first.
struct NotingImpl : torch::nn::Module {
  NotingImpl()
      : weight(register_parameter("weight", torch::ones({1}))),
        factor(register_buffer("factor", torch::ones({1}))) {}
  at::Tensor forward() {
    seen.push_back(factor.item<double>());
    return (weight * seen.back()).sum();
  }
  void set(double value) {
    const at::NoGradGuard no_grad;
    factor.fill_(value);
  }
  at::Tensor weight, factor;
  Values seen;
};
using NotingDdp = DistributedDataParallel<NotingImpl>;

}  // namespace lockstep::test
