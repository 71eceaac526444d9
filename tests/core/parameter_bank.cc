// SPDX-License-Identifier: Apache-2.0
// The module of dictated gradients.
#include "tests/core/parameter_bank.h"

#include <stdexcept>

namespace lockstep::test {

ParameterBankImpl::ParameterBankImpl(const std::vector<std::vector<std::int64_t>>& shapes,
                                     at::ScalarType dtype) {
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    values_.push_back(register_parameter(
        "p" + std::to_string(i), torch::full(shapes[i], static_cast<double>(i + 1), dtype)));
  }
}

at::Tensor ParameterBankImpl::forward(const std::vector<Term>& terms) {
  at::Tensor total = torch::zeros({}, values_.front().options());
  for (const Term& term : terms) {
    total = total + (parameter(term.parameter) * term.coefficient).sum();
  }
  return total;
}

ParameterBank scalar_bank(std::int64_t count) {
  return ParameterBank(
      std::vector<std::vector<std::int64_t>>(static_cast<std::size_t>(count), {1}));
}

std::vector<Term> all_terms(std::int64_t count, double coefficient) {
  std::vector<Term> terms;
  for (std::int64_t i = 0; i < count; ++i) {
    terms.push_back({i, coefficient});
  }
  return terms;
}

std::vector<double> gradients(ParameterBankImpl& bank) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < bank.size(); ++i) {
    const at::Tensor& gradient = bank.parameter(i).grad();
    if (!gradient.defined()) {
      values.push_back(kNone);
      continue;
    }
    const auto first = gradient.reshape({-1})[0].item<double>();
    if (!gradient.eq(first).all().item<bool>()) {
      throw std::runtime_error("elements of the gradient of p" + std::to_string(i) + " differ");
    }
    values.push_back(first);
  }
  return values;
}

void clear_gradients(torch::nn::Module& module) {
  for (at::Tensor& parameter : module.parameters()) {
    parameter.mutable_grad() = at::Tensor();
  }
}

void train_once(BankDdp& ddp, const std::vector<Term>& terms) { ddp(terms).backward(); }

DdpOptions one_parameter_per_bucket(DdpOptions options) {
  options.first_bucket_cap_bytes = 1;
  options.bucket_cap_bytes = 1;
  return options;
}

std::vector<std::int64_t> EventLog::indices_of(EventKind kind) const {
  std::vector<std::int64_t> indices;
  for (const Event& event : events) {
    if (event.kind == kind) {
      indices.push_back(event.index);
    }
  }
  return indices;
}

std::int64_t EventLog::position_of(EventKind kind, std::int64_t index) const {
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].kind == kind && events[i].index == index) {
      return static_cast<std::int64_t>(i);
    }
  }
  return -1;
}

}  // namespace lockstep::test
