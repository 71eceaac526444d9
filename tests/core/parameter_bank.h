// SPDX-License-Identifier: Apache-2.0
// A module whose gradients, and the order in which they become ready, a test can dictate.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/distributed_data_parallel.h"
#include "tests/support/run_ranks.h"

namespace lockstep::test {

/// One use of one parameter: adds coefficient * sum(parameter) to the loss, so every element of
/// the parameter's gradient grows by `coefficient`.
struct Term {
  std::int64_t parameter = 0;
  double coefficient = 1.0;
};

/// Parameters p0, p1, ... of given shapes, all elements of p<i> being i + 1.
///
/// forward(terms) is the sum of the terms. Backward handles the last term first, so gradients
/// become ready in reverse order of `terms`.
class ParameterBankImpl : public torch::nn::Module {
 public:
  explicit ParameterBankImpl(const std::vector<std::vector<std::int64_t>>& shapes,
                             at::ScalarType dtype = at::kFloat);
  at::Tensor forward(const std::vector<Term>& terms);
  at::Tensor& parameter(std::int64_t index) { return values_.at(static_cast<std::size_t>(index)); }
  std::int64_t size() const { return static_cast<std::int64_t>(values_.size()); }

 private:
  std::vector<at::Tensor> values_;
};
TORCH_MODULE(ParameterBank);

using BankDdp = DistributedDataParallel<ParameterBankImpl>;

/// `count` parameters of one element.
ParameterBank scalar_bank(std::int64_t count);

/// Terms for parameters 0 .. count-1 in this order, all with one coefficient.
std::vector<Term> all_terms(std::int64_t count, double coefficient = 1.0);

/// One value per parameter: the gradient's only distinct element, or `kNone` where undefined.
/// Fails (throws) if the elements of one gradient differ.
constexpr double kNone = -12345.0;
std::vector<double> gradients(ParameterBankImpl& bank);

/// Sets every gradient to undefined.
void clear_gradients(torch::nn::Module& module);

/// Forward through the wrapper, then backward.
void train_once(BankDdp& ddp, const std::vector<Term>& terms);

/// Buckets so small that every parameter has its own.
DdpOptions one_parameter_per_bucket(DdpOptions options = {});

/// Collects events of one rank.
class EventLog : public Observer {
 public:
  void on_event(const Event& event) override { events.push_back(event); }
  /// The indices of all events of one kind, in order.
  std::vector<std::int64_t> indices_of(EventKind kind) const;
  /// Position of the first such event, or -1.
  std::int64_t position_of(EventKind kind, std::int64_t index) const;

  std::vector<Event> events;
};

}  // namespace lockstep::test
