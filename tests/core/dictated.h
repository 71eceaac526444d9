// SPDX-License-Identifier: Apache-2.0
// A module whose gradients are whatever tensors a test wants, and the ranks' values to test with.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/distributed_data_parallel.h"

namespace lockstep::test {

/// Parameters p0, p1, ... with the values given; their layouts are kept.
///
/// forward(gradients) returns a real scalar whose backward gives p<i> exactly gradients[i]; where
/// that is undefined, p<i> is not used. Gradients become ready in reverse order.
class DictatedImpl : public torch::nn::Module {
 public:
  explicit DictatedImpl(std::vector<at::Tensor> values);
  at::Tensor forward(const std::vector<at::Tensor>& gradients);

  std::vector<at::Tensor> values;
};

using DictatedDdp = DistributedDataParallel<DictatedImpl>;

/// 1, 2, ... over 7, times rank + 1, alternating in sign: hardly any is exact in binary.
at::Tensor sevenths(std::int64_t rank, at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat);

/// f(0) + f(1) + ... + f(count - 1), in this order.
at::Tensor sum_over(std::int64_t count, const std::function<at::Tensor(std::int64_t)>& f);

/// Same dtype, sizes and values, bit for bit but for the sign of zero.
bool same(const at::Tensor& a, const at::Tensor& b);

/// Clones of all gradients; undefined ones stay so.
std::vector<at::Tensor> gradient_tensors(torch::nn::Module& module);

}  // namespace lockstep::test
