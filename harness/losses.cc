// SPDX-License-Identifier: Apache-2.0
// Losses of single heads and of parts of a batch.
#include "harness/losses.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include "core/check.h"

namespace lockstep::harness {

bool is_input_gradient(const std::string& loss) {
  return loss == "input_gradient" || loss == "anchored_input_gradient";
}

at::Tensor input_gradient_loss(const std::string& loss, const at::Tensor& output,
                               const at::Tensor& input) {
  const at::Tensor gradient =
      torch::autograd::grad({output.sum()}, {input}, {},
                            /*retain_graph=*/true, /*create_graph=*/true)[0];
  const at::Tensor sum = gradient.square().sum();
  return loss == "input_gradient" ? sum : sum + 0.0 * output.sum();
}

at::Tensor head_loss(const std::string& loss, const std::string& reduction,
                     const at::Tensor& output, const at::Tensor& target) {
  LOCKSTEP_USAGE(reduction == "mean" || reduction == "sum",
                 "\"{}\" is neither \"mean\" nor \"sum\"", reduction);
  const bool mean = reduction == "mean";
  if (loss == "mse") {
    return torch::mse_loss(output, target, mean ? at::Reduction::Mean : at::Reduction::Sum);
  }
  if (loss == "dot") {
    const at::Tensor total = (output * target).sum();
    return mean ? total / static_cast<double>(output.size(0)) : total;
  }
  LOCKSTEP_USAGE(loss == "cross_entropy", "\"{}\" is none of \"mse\", \"cross_entropy\", \"dot\"",
                 loss);
  const std::int64_t classes = output.size(-1);
  return torch::cross_entropy_loss(output.reshape({-1, classes}), target.reshape({-1}), {},
                                   mean ? at::Reduction::Mean : at::Reduction::Sum);
}

at::Tensor part_loss(const TrainSpec& train, bool sums, const Part& part,
                     const LossInputs& inputs) {
  const at::Tensor& target = inputs.target;
  at::Tensor output =
      target.is_floating_point() ? inputs.output.to(target.scalar_type()) : inputs.output;
  if (output.dim() < target.dim()) {
    output = output.expand_as(target);  // an offset: the same for every sample
  }
  const auto num_samples = static_cast<double>(part.samples.size());
  const double over = part.mean_over == 0.0 ? num_samples : part.mean_over;
  const bool is_sum = sums || train.reduction == "sum";
  if (is_input_gradient(train.loss)) {
    const at::Tensor sum = input_gradient_loss(train.loss, output, inputs.input);
    return is_sum ? sum : sum / over;
  }
  if (is_sum || over == num_samples) {
    return head_loss(train.loss, is_sum ? "sum" : "mean", output, target);
  }
  // One division by the size of the whole mean: a mean of this part times its share would round.
  std::int64_t terms_per_sample = 1;
  for (std::int64_t dim = 1; train.loss != "dot" && dim < target.dim(); ++dim) {
    terms_per_sample *= target.size(dim);
  }
  return head_loss(train.loss, "sum", output, target) /
         (static_cast<double>(terms_per_sample) * over);
}

}  // namespace lockstep::harness
