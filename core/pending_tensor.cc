// SPDX-License-Identifier: Apache-2.0
// Evaluates what is pending, once.
#include "core/pending_tensor.h"

#include <utility>

namespace lockstep {

PendingTensor PendingTensor::then(Step step) && {
  steps_.push_back(std::move(step));
  return std::move(*this);
}

at::Tensor PendingTensor::wait() {
  if (error_ != nullptr) {
    std::rethrow_exception(error_);
  }
  try {
    evaluate();
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
  return tensor_;
}

void PendingTensor::evaluate() {
  if (work_ != nullptr) {
    work_->wait();
    work_.reset();
  }
  for (const Step& step : std::exchange(steps_, {})) {
    tensor_ = step(std::move(tensor_));
  }
}

}  // namespace lockstep
