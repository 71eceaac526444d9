// SPDX-License-Identifier: Apache-2.0
// Chunks of the batch change places between ranks, forward and backward.
#include "harness/all_to_all.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include "core/check.h"

namespace lockstep::harness {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_batch(const at::Tensor& input, std::int64_t num_ranks) {
  LOCKSTEP_USAGE(input.dim() > 0 && input.size(0) % num_ranks == 0,
                 "all_to_all cannot cut a batch of {} samples into {} equal chunks; expected a "
                 "multiple of the number of ranks",
                 input.dim() > 0 ? input.size(0) : 0, num_ranks);
}

/// Lets a graph hold on to a communicator, which outlives it.
class CommunicatorHolder : public torch::CustomClassHolder {
 public:
  explicit CommunicatorHolder(Communicator& communicator) : communicator_(communicator) {}
  Communicator& communicator() const { return communicator_; }

 private:
  Communicator& communicator_;
};

at::Tensor exchange(const at::Tensor& given, Communicator& communicator) {
  const at::Tensor input = given.contiguous();
  const std::int64_t num_ranks = communicator.world_size();
  std::vector<std::int64_t> gathered_sizes = input.sizes().vec();
  gathered_sizes.insert(gathered_sizes.begin(), num_ranks);
  const at::Tensor gathered = at::empty(gathered_sizes, input.options());
  communicator.all_gather(gathered, input, {CallSite::kScript, -1, -1})->wait();
  const std::int64_t chunk = input.size(0) / num_ranks;
  // Contiguous, for a kernel may add up in another order over rows that lie apart.
  return gathered.narrow(1, communicator.rank() * chunk, chunk).reshape(input.sizes()).contiguous();
}

class ExchangeChunks : public torch::autograd::Function<ExchangeChunks> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            Communicator& communicator) {
    context->saved_data["communicator"] =
        at::IValue::make_capsule(c10::make_intrusive<CommunicatorHolder>(communicator));
    return exchange(input, communicator);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto holder = context->saved_data["communicator"].toCapsule();
    return {exchange(gradients[0], static_cast<CommunicatorHolder&>(*holder).communicator()), {}};
  }
};

variable_list exchange_jointly(const variable_list& inputs) {
  const auto num_ranks = static_cast<std::int64_t>(inputs.size());
  variable_list outputs;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    std::vector<at::Tensor> chunks;
    for (const at::Tensor& input : inputs) {
      const std::int64_t chunk = input.size(0) / num_ranks;
      chunks.push_back(input.narrow(0, rank * chunk, chunk));
    }
    outputs.push_back(at::cat(chunks));
  }
  return outputs;
}

class ExchangeChunksJointly : public torch::autograd::Function<ExchangeChunksJointly> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList inputs) {
    context->save_for_backward(inputs.vec());
    return exchange_jointly(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list inputs = context->get_saved_variables();
    variable_list defined;
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      defined.push_back(gradients[rank].defined() ? gradients[rank] : at::zeros_like(inputs[rank]));
    }
    return exchange_jointly(defined);
  }
};

}  // namespace

at::Tensor all_to_all(const at::Tensor& input, Communicator& communicator) {
  check_batch(input, communicator.world_size());
  return ExchangeChunks::apply(input, communicator);
}

std::vector<at::Tensor> joint_all_to_all(const std::vector<at::Tensor>& inputs) {
  for (const at::Tensor& input : inputs) {
    check_batch(input, static_cast<std::int64_t>(inputs.size()));
  }
  return ExchangeChunksJointly::apply(at::TensorList(inputs));
}

}  // namespace lockstep::harness
