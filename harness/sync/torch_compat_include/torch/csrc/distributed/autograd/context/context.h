// SPDX-License-Identifier: Apache-2.0
// Stands in for a header that LibTorch's reducer.hpp includes and Debian 12 does not ship.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace torch::distributed::autograd {

/// Declared as far as the reducer's header looks at it; never constructed here.
class DistAutogradContext {
 public:
  using GradCallback = std::function<bool(at::Tensor&)>;
};

using ContextPtr = std::shared_ptr<DistAutogradContext>;

}  // namespace torch::distributed::autograd
