// SPDX-License-Identifier: Apache-2.0
// Batch statistics of several replicas, and their gradient.
#include "harness/joint_batch_norm.h"

#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>

#include "core/check.h"
#include "sim/ring_order.h"

namespace lockstep::harness {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<std::int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<std::int64_t> dims;
  for (std::int64_t dim = 0; dim < input.dim(); ++dim) {
    if (dim != 1) {
      dims.push_back(dim);
    }
  }
  return dims;
}

/// [C] in the shape that combines with `input`.
at::Tensor along_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(input.dim()), 1);
  sizes[1] = values.numel();
  return values.reshape(sizes);
}

struct Moments {
  double count = 0;  // values per channel, over all replicas
  at::Tensor mean, sum_squares, inverse_std;
};

// With n_r values of mean m_r and sum of squared deviations M_r on replica r:
//   n = sum n_r,  m = sum n_r m_r / n,  M = sum (M_r + n_r (m_r - m)^2).
Moments moments_of(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> counts, means, squares;
  for (const at::Tensor& input : inputs) {
    const at::Tensor values = input.to(at::kDouble);
    const double count = static_cast<double>(values.numel() / values.size(1));
    means.push_back(values.sum(all_but_channels(values)) / std::max(count, 1.0));
    squares.push_back(
        (values - along_channels(means.back(), values)).square().sum(all_but_channels(values)));
    counts.push_back(at::full({1}, count, values.options()));
  }
  const at::Tensor count = at::stack(counts), mean = at::stack(means);
  Moments moments;
  moments.count = count.sum().item<double>();
  const double divisor = std::max(moments.count, 1.0);
  moments.mean = (count * mean).sum(0) / divisor;
  moments.sum_squares = (at::stack(squares) + count * (mean - moments.mean).square()).sum(0);
  moments.inverse_std = (moments.sum_squares / divisor + kNormEps).rsqrt();
  return moments;
}

// y_r = (x_r - m) s. With g_r the gradients of the y_r and s = 1 / std:
//   dx_r = s (g_r - sum g / n - y_r sum (g y) / n), the sums being over all replicas.
class NormalizeTogether : public torch::autograd::Function<NormalizeTogether> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList inputs,
                               const Moments& moments) {
    variable_list outputs;
    for (const at::Tensor& input : inputs) {
      outputs.push_back(((input.to(at::kDouble) - along_channels(moments.mean, input)) *
                         along_channels(moments.inverse_std, input))
                            .to(input.scalar_type()));
    }
    variable_list saved = outputs;
    saved.push_back(moments.inverse_std);
    context->save_for_backward(std::move(saved));
    context->saved_data["count"] = moments.count;
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list outputs = context->get_saved_variables();
    const at::Tensor inverse_std = outputs.back();
    outputs.pop_back();
    const double count = std::max(context->saved_data["count"].toDouble(), 1.0);
    std::vector<at::Tensor> sums, wide;
    for (std::size_t r = 0; r < outputs.size(); ++r) {
      wide.push_back(
          (gradients[r].defined() ? gradients[r] : at::zeros_like(outputs[r])).to(at::kDouble));
      const std::vector<std::int64_t> dims = all_but_channels(wide[r]);
      sums.push_back(
          at::cat({wide[r].sum(dims), (wide[r] * outputs[r].to(at::kDouble)).sum(dims)}));
    }
    sim::ring_all_reduce(sums, ReduceOp::kSum);
    const std::vector<at::Tensor> means = (sums.front() / count).chunk(2);
    variable_list result;
    for (std::size_t r = 0; r < outputs.size(); ++r) {
      const at::Tensor centered = wide[r] - along_channels(means[0], wide[r]) -
                                  outputs[r].to(at::kDouble) * along_channels(means[1], wide[r]);
      result.push_back(
          (centered * along_channels(inverse_std, wide[r])).to(outputs[r].scalar_type()));
    }
    result.emplace_back();  // the moments
    return result;
  }
};

void update(const Moments& moments, const NormTensors& replica) {
  replica.num_batches_tracked.add_(1);
  if (moments.count == 0.0) {
    return;
  }
  const auto move = [](const at::Tensor& running, const at::Tensor& value) {
    running.copy_(running.to(at::kDouble) * (1.0 - kBatchNormMomentum) +
                  value * kBatchNormMomentum);
  };
  move(replica.running_mean, moments.mean);
  move(replica.running_var, moments.sum_squares / (moments.count - 1.0));
}

}  // namespace

std::vector<at::Tensor> joint_batch_norm(const std::vector<at::Tensor>& inputs,
                                         const std::vector<NormTensors>& replicas) {
  Moments moments;
  {
    const at::NoGradGuard no_grad;
    moments = moments_of(inputs);
    LOCKSTEP_USAGE(
        moments.count != 1.0,
        "sync_batch_norm needs more than one value per channel, over all ranks together");
    for (const NormTensors& replica : replicas) {
      update(moments, replica);
    }
  }
  std::vector<at::Tensor> outputs = NormalizeTogether::apply(at::TensorList(inputs), moments);
  for (std::size_t r = 0; r < outputs.size(); ++r) {
    // Times one: where there is one value per channel, a sum hands its gradient on as it is, and
    // the biases of two layers might share it.
    outputs[r] = (outputs[r] * along_channels(replicas[r].weight, inputs[r]) +
                  along_channels(replicas[r].bias * 1.0, inputs[r]))
                     .to(inputs[r].scalar_type());
  }
  return outputs;
}

}  // namespace lockstep::harness
