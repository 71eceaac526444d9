// SPDX-License-Identifier: Apache-2.0
// Views of the buffer that a hook is given.
#include "core/comm_hook.h"

#include "core/bucket.h"

namespace lockstep {

std::vector<at::Tensor> GradBucket::gradients() const {
  if (buffer.is_sparse()) {
    return {buffer};
  }
  std::vector<at::Tensor> views;
  views.reserve(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    views.push_back(view_of(buffer, parameters[i], offsets[i]));
  }
  return views;
}

}  // namespace lockstep
