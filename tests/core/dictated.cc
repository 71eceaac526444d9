// SPDX-License-Identifier: Apache-2.0
// The module of dictated gradient tensors.
#include "tests/core/dictated.h"

#include <utility>

namespace lockstep::test {

DictatedImpl::DictatedImpl(std::vector<at::Tensor> values_in) : values(std::move(values_in)) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = register_parameter("p" + std::to_string(i), values[i]);
  }
}

at::Tensor DictatedImpl::forward(const std::vector<at::Tensor>& gradients) {
  at::Tensor total = torch::zeros({}, at::kDouble);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].defined()) {
      // d Re(p conj(g)) / dp is g in LibTorch's convention.
      const at::Tensor product = values[i] * gradients[i].conj();
      total = total + (product.is_complex() ? at::real(product) : product).to(at::kDouble).sum();
    }
  }
  return total;
}

at::Tensor sevenths(std::int64_t rank, at::IntArrayRef sizes, at::ScalarType dtype) {
  std::int64_t numel = 1;
  for (const std::int64_t size : sizes) {
    numel *= size;
  }
  const at::Tensor counted = at::arange(1, numel + 1, at::kDouble);
  const at::Tensor signs = 1 - 2 * at::remainder(counted, 2);
  return (counted * signs * static_cast<double>(rank + 1) / 7).to(dtype).view(sizes);
}

at::Tensor sum_over(std::int64_t count, const std::function<at::Tensor(std::int64_t)>& f) {
  at::Tensor sum = f(0);
  for (std::int64_t i = 1; i < count; ++i) {
    sum = sum + f(i);
  }
  return sum;
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && b.defined() && a.scalar_type() == b.scalar_type() && a.equal(b);
}

std::vector<at::Tensor> gradient_tensors(torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : module.parameters()) {
    const at::Tensor& gradient = parameter.grad();
    gradients.push_back(gradient.defined() ? gradient.detach().clone() : at::Tensor());
  }
  return gradients;
}

}  // namespace lockstep::test
