// SPDX-License-Identifier: Apache-2.0
// A tensor that a collective is still producing.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "core/communicator.h"

namespace lockstep {

/// A result to come: a collective in flight, a tensor, and what is still to be done with it.
///
/// Order:   nothing is computed before `wait`, which runs the steps in the order of `then`. Steps
///          may issue collectives; since ranks wait for their results in one order, those pair up.
/// Threads: one; steps run on the thread that calls `wait`.
/// Dropping it does not cancel the collective.
class PendingTensor {
 public:
  using Step = std::function<at::Tensor(at::Tensor)>;

  /// Nothing is pending; `wait` returns an undefined tensor.
  PendingTensor() = default;
  /// A tensor that is there already.
  explicit PendingTensor(at::Tensor ready) : tensor_(std::move(ready)) {}
  /// `tensor` may be read once `work` has ended.
  PendingTensor(std::unique_ptr<Work> work, at::Tensor tensor)
      : work_(std::move(work)), tensor_(std::move(tensor)) {}
  PendingTensor(PendingTensor&&) = default;
  PendingTensor& operator=(PendingTensor&&) = default;

  /// Appends a step that turns the result into another one.
  PendingTensor then(Step step) &&;

  /// Blocks, runs the steps and returns the result; later calls return or throw the same at once.
  /// Errors: CommError, and whatever a step throws.
  at::Tensor wait();

 private:
  void evaluate();

  std::unique_ptr<Work> work_;
  at::Tensor tensor_;
  std::vector<Step> steps_;
  std::exception_ptr error_;
};

}  // namespace lockstep
