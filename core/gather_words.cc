// SPDX-License-Identifier: Apache-2.0
// Gathers numbers.
#include "core/gather_words.h"

#include <torch/types.h>

namespace lockstep {

at::Tensor gather_words(Communicator& communicator, const std::vector<std::int64_t>& words,
                        at::Device device, CollectiveTag tag) {
  const at::NoGradGuard no_grad;
  const auto numel = static_cast<std::int64_t>(words.size());
  const at::Tensor input = at::tensor(words, at::kLong).to(device);
  const at::Tensor output = at::zeros({communicator.world_size(), numel}, input.options());
  communicator.all_gather(output, input, tag)->wait();
  return output.cpu();
}

}  // namespace lockstep
