// SPDX-License-Identifier: Apache-2.0
// Forward of single blocks, and their initial values.
#include "harness/block_module.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cmath>

#include "core/check.h"
#include "core/checkpoint.h"
#include "core/rng.h"
#include "core/sync_batch_norm.h"
#include "harness/all_to_all.h"
#include "harness/exact_data.h"
#include "harness/joint_batch_norm.h"

namespace lockstep::harness {
namespace {

constexpr std::int64_t kDenseOutOf = 4;
constexpr double kGain = 2.0;

}  // namespace

BlockModule::BlockModule(const BlockSpec& spec, at::ScalarType dtype)
    : torch::nn::Module(to_string(spec.kind)), spec_(spec) {
  if (spec.kind == BlockKind::kGain) {
    factor_ = register_buffer("factor", torch::full({spec.out}, kGain, dtype));
  } else if (!block_buffers(spec).empty()) {
    const auto options = torch::TensorOptions().dtype(parameter_dtype(spec, dtype));
    running_mean_ = register_buffer("running_mean", torch::zeros({spec.out}, options));
    running_var_ = register_buffer("running_var", torch::ones({spec.out}, options));
    num_batches_tracked_ = register_buffer("num_batches_tracked",
                                           torch::zeros({}, torch::TensorOptions(torch::kLong)));
  }
}

void BlockModule::set_parameter(const std::string& local, const at::Tensor& value) {
  if (at::Tensor* registered = parameters_.find(local)) {
    *registered = value;
  } else {
    register_parameter(local, value, value.requires_grad());
  }
  (local == "weight" ? weight_ : bias_) = value;
}

at::Tensor BlockModule::batch_norm(const at::Tensor& input) {
  if (is_training()) {
    const std::int64_t values = input.numel() / spec_.out;
    LOCKSTEP_USAGE(values > 1,
                   "batch_norm cannot take the variance of {} value per channel; use "
                   "larger micro-batches",
                   values);
    num_batches_tracked_ += 1;
  }
  return torch::batch_norm(input, weight_, bias_, running_mean_, running_var_, is_training(),
                           kBatchNormMomentum, kNormEps, /*cudnn_enabled=*/false);
}

at::Tensor BlockModule::sync_batch_norm(const at::Tensor& input) {
  if (communicator_ == nullptr) {
    return batch_norm(input);
  }
  SyncBatchNormImpl norm(
      torch::nn::BatchNormOptions(spec_.out).eps(kNormEps).momentum(kBatchNormMomentum),
      *communicator_, {weight_, bias_, running_mean_, running_var_, num_batches_tracked_});
  norm.train(is_training());
  return norm.forward(input);
}

at::Tensor BlockModule::forward(const at::Tensor& input) {
  if (spec_.checkpoint == Checkpointing::kNone) {
    return compute(input);
  }
  // A graph lives no longer than the step that made it, and the model longer.
  const auto body = [this](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{compute(inputs[0])};
  };
  const std::vector<at::Tensor> own = parameters(/*recurse=*/false);
  if (spec_.checkpoint == Checkpointing::kPlain) {
    return checkpoint(body, {input}, own)[0];
  }
  CheckpointOptions options;
  options.may_use = own;
  return checkpoint_reentrant(body, {input}, options)[0];
}

std::vector<at::Tensor> BlockModule::forward_together(const std::vector<BlockModule*>& replicas,
                                                      const std::vector<at::Tensor>& inputs) {
  const BlockModule& first = *replicas.front();
  if (first.spec_.kind == BlockKind::kSyncBatchNorm && first.is_training() && replicas.size() > 1) {
    std::vector<NormTensors> tensors;
    std::vector<at::Tensor> converted;
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      const BlockModule& replica = *replicas[i];
      tensors.push_back({replica.weight_, replica.bias_, replica.running_mean_,
                         replica.running_var_, replica.num_batches_tracked_});
      converted.push_back(inputs[i].to(replica.weight_.scalar_type()));
    }
    return joint_batch_norm(converted, tensors);
  }
  if (first.spec_.kind == BlockKind::kAllToAll && first.communicator_ == nullptr) {
    return joint_all_to_all(inputs);
  }
  std::vector<at::Tensor> outputs;
  outputs.reserve(replicas.size());
  for (std::size_t i = 0; i < replicas.size(); ++i) {
    outputs.push_back(replicas[i]->forward(inputs[i]));
  }
  return outputs;
}

at::Tensor BlockModule::compute(const at::Tensor& given) {
  const bool converts = weight_.defined() && spec_.kind != BlockKind::kEmbedding;
  const at::Tensor input = converts ? given.to(weight_.scalar_type()) : given;
  switch (spec_.kind) {
    case BlockKind::kLinear: {
      const at::Tensor output = torch::linear(input, weight_, bias_);
      return output.is_complex() ? at::view_as_real(output).flatten(-2) : output;
    }
    case BlockKind::kRelu:
      return torch::relu(input);
    case BlockKind::kTanh:
      return torch::tanh(input);
    case BlockKind::kIdentity:
      return input;
    case BlockKind::kDetach:
      return input.detach();
    case BlockKind::kBatchNorm:
      return batch_norm(input);
    case BlockKind::kSyncBatchNorm:
      return sync_batch_norm(input);
    case BlockKind::kLayerNorm:
      return torch::layer_norm(input, {spec_.out}, weight_, bias_, kNormEps);
    case BlockKind::kDropout:
      return torch::dropout(input, spec_.rate, is_training());
    case BlockKind::kEmbedding:
      return torch::embedding(weight_, input, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false,
                              spec_.sparse);
    case BlockKind::kConv2d:
      // LibTorch's own kernel. The other one, oneDNN's, rounds while it prepares itself for a new
      // shape, which would look like an inexact case.
      return torch::thnn_conv2d(input, weight_, {spec_.kernel, spec_.kernel}, bias_, {1, 1},
                                {0, 0});
    case BlockKind::kFlatten:
      return input.flatten(1);
    case BlockKind::kScale:
      return input * weight_;
    case BlockKind::kOffset:
      return weight_;
    case BlockKind::kAllToAll:
      return all_to_all(input, *communicator_);
    case BlockKind::kGain:
      return input * factor_;
    case BlockKind::kSame:
      break;
  }
  throw InvariantError("a shared block has no module of its own");
}

at::ScalarType parameter_dtype(const BlockSpec& spec, at::ScalarType dtype) {
  if (is_complex(spec)) {
    return at::kComplexFloat;
  }
  return spec.dtype == "float64" ? at::kDouble : dtype;
}

at::Tensor draw_parameter(const BlockSpec& spec, const TensorSpec& parameter, at::ScalarType dtype,
                          const InitialValues& initial) {
  const bool is_weight = parameter.name == "weight";
  const bool complex = c10::isComplexType(dtype);
  Sizes sizes = parameter.sizes;
  if (complex) {
    sizes.push_back(2);
  }
  at::Tensor values = torch::empty(sizes, torch::TensorOptions(torch::kDouble));
  double* const data = values.data_ptr<double>();
  CounterRng rng(initial.seed, RngStream::kInit, initial.init_rank, initial.index);
  const std::int64_t fan_in = spec.in * std::max<std::int64_t>(1, spec.kernel * spec.kernel);
  const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    switch (spec.kind) {
      case BlockKind::kLinear:
      case BlockKind::kConv2d:
        // About two of an output's weights are not zero, however many inputs it has.
        data[i] = initial.exact ? draw_exact_unit(rng, std::max(kDenseOutOf, fan_in))
                                : rng.uniform(-bound, bound);
        break;
      case BlockKind::kEmbedding:
        data[i] = initial.exact ? draw_exact_unit(rng, kDenseOutOf) : rng.normal();
        break;
      default:
        data[i] = is_weight ? 1.0 : 0.0;
    }
  }
  return (complex ? at::view_as_complex(values) : values).to(dtype);
}

}  // namespace lockstep::harness
