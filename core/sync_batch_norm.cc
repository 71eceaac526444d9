// SPDX-License-Identifier: Apache-2.0
// Statistics over all ranks, their gradient, and the conversion of modules.
#include "core/sync_batch_norm.h"

#include <torch/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/check.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr CollectiveTag kTag{CallSite::kSyncBatchNorm, -1, -1};

// All dimensions but the channels'.
std::vector<std::int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t dim = 2; dim < input.dim(); ++dim) {
    dims.push_back(dim);
  }
  return dims;
}

// [C] as [1, C, 1, ...], so that it combines with `input`.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(input.dim()), 1);
  sizes[1] = values.numel();
  return values.view(sizes);
}

// Of all ranks' batches; tensors are double [C].
struct Statistics {
  double count = 0;        // values per channel
  at::Tensor mean;         // zero if there is no value
  at::Tensor sum_squares;  // of deviations from the mean
  at::Tensor inverse_std;  // 1 / sqrt(biased variance + eps)
};

// Note [Statistics of several batches]
// Rank r has n_r values per channel with mean m_r and sum M_r of squared deviations from m_r. Then
//   n = sum n_r,   mean = sum n_r m_r / n,   M = sum (M_r + n_r (m_r - mean)^2).
// All terms of M are positive, so nothing cancels, unlike in sum x^2 - n mean^2. Each rank adds the
// gathered terms in rank order: all ranks get the same bits.
Statistics gather_statistics(const at::Tensor& values, double eps, Communicator& communicator) {
  const std::int64_t channels = values.size(1);
  const std::vector<std::int64_t> dims = reduced_dims(values);
  const double own_count = channels == 0 ? 0.0 : static_cast<double>(values.numel() / channels);
  const at::Tensor own_mean = values.sum(dims) / std::max(own_count, 1.0);
  const at::Tensor own_squares = (values - per_channel(own_mean, values)).square().sum(dims);
  const at::Tensor own =
      at::cat({at::full({1}, own_count, values.options()), own_mean, own_squares});
  at::Tensor all = at::empty({communicator.world_size(), own.numel()}, own.options());
  communicator.all_gather(all, own, kTag)->wait();

  const at::Tensor counts = all.narrow(1, 0, 1);
  const at::Tensor means = all.narrow(1, 1, channels);
  const at::Tensor squares = all.narrow(1, 1 + channels, channels);
  Statistics statistics;
  statistics.count = counts.sum().item<double>();
  const double divisor = std::max(statistics.count, 1.0);
  statistics.mean = (counts * means).sum(0) / divisor;
  statistics.sum_squares = (squares + counts * (means - statistics.mean).square()).sum(0);
  statistics.inverse_std = (statistics.sum_squares / divisor + eps).rsqrt();
  return statistics;
}

class CommunicatorHolder : public torch::CustomClassHolder {
 public:
  explicit CommunicatorHolder(Communicator& communicator) : communicator_(communicator) {}
  Communicator& communicator() const { return communicator_; }

 private:
  Communicator& communicator_;  // outlives every graph, by the module's contract
};

// y = (x - mean) * inverse_std, where mean and inverse_std depend on the x of all ranks. With g the
// gradient of y and n the number of values per channel, over all ranks,
//   dx = inverse_std * (g - sum g / n - y * sum (g y) / n).
// A loss is the sum of all ranks' losses here; DDP divides the gradients later.
class Normalize : public torch::autograd::Function<Normalize> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const Statistics& statistics, Communicator& communicator) {
    const at::Tensor output = ((input.to(at::kDouble) - per_channel(statistics.mean, input)) *
                               per_channel(statistics.inverse_std, input))
                                  .to(input.scalar_type());
    context->save_for_backward({output, statistics.inverse_std});
    context->saved_data["count"] = statistics.count;
    context->saved_data["communicator"] =
        at::IValue::make_capsule(c10::make_intrusive<CommunicatorHolder>(communicator));
    return output;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto holder = context->saved_data["communicator"].toCapsule();
    Communicator& communicator = static_cast<CommunicatorHolder&>(*holder).communicator();
    if (at::GradMode::is_enabled()) {
      throw DdpError("create_graph",
                     fmt::format("rank {}: the gradient of SyncBatchNorm cannot be differentiated "
                                 "again: run backward without create_graph, or the module in "
                                 "evaluation mode",
                                 communicator.rank()));
    }
    const variable_list saved = context->get_saved_variables();
    const at::Tensor output = saved[0].to(at::kDouble);
    const at::Tensor gradient = gradients[0].to(at::kDouble);
    const std::vector<std::int64_t> dims = reduced_dims(gradient);
    const at::Tensor sums = at::cat({gradient.sum(dims), (gradient * output).sum(dims)});
    communicator.all_reduce(sums, ReduceOp::kSum, kTag)->wait();
    const std::vector<at::Tensor> means =
        (sums / std::max(context->saved_data["count"].toDouble(), 1.0)).chunk(2);
    const at::Tensor centered =
        gradient - per_channel(means[0], gradient) - output * per_channel(means[1], gradient);
    return {(centered * per_channel(saved[1], gradient)).to(gradients[0].scalar_type()),
            at::Tensor(), at::Tensor()};
  }
};

/// Where there is one value per channel, a sum hands its gradient on as it is: without a copy the
/// `.grad` of two parameters might share their memory. An absent one stays absent, as the weight's
/// does and BatchNorm's do.
class OwnGradient : public torch::autograd::Function<OwnGradient> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& values) {
    context->set_materialize_grads(false);
    return values.view_as(values);
  }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    return {gradients[0].defined() ? gradients[0].clone() : at::Tensor()};
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_in,
                                     Communicator& communicator)
    : options(options_in), communicator_(&communicator) {
  reset();
}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& options_in,
                                     Communicator& communicator, const Tensors& given)
    : options(options_in), communicator_(&communicator) {
  adopt(given);
}

void SyncBatchNormImpl::reset() {
  const std::int64_t channels = options.num_features();
  Tensors fresh;
  if (options.affine()) {
    fresh.weight = torch::ones({channels}, torch::requires_grad());
    fresh.bias = torch::zeros({channels}, torch::requires_grad());
  }
  if (options.track_running_stats()) {
    fresh.running_mean = torch::zeros({channels});
    fresh.running_var = torch::ones({channels});
    fresh.num_batches_tracked = torch::zeros({}, torch::kLong);
  }
  adopt(fresh);
}

void SyncBatchNormImpl::adopt(const Tensors& given) {
  tensors = given;
  const auto add_parameter = [this](const char* name, const at::Tensor& tensor) {
    register_parameter(name, tensor, tensor.defined() && tensor.requires_grad());
  };
  add_parameter("weight", tensors.weight);
  add_parameter("bias", tensors.bias);
  register_buffer("running_mean", tensors.running_mean);
  register_buffer("running_var", tensors.running_var);
  register_buffer("num_batches_tracked", tensors.num_batches_tracked);
}

double SyncBatchNormImpl::next_average_factor() {
  if (!options.track_running_stats()) {
    return 0.0;
  }
  tensors.num_batches_tracked += 1;
  return options.momentum().has_value() ? *options.momentum()
                                        : 1.0 / tensors.num_batches_tracked.item<double>();
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  LOCKSTEP_USAGE(input.dim() >= 2 && input.size(1) == options.num_features(),
                 "SyncBatchNorm of {} channels needs an input [N, {}, ...], got {} dimensions with "
                 "{} elements",
                 options.num_features(), options.num_features(), input.dim(), input.numel());
  if (is_training() && communicator_->world_size() > 1) {
    return synchronized(input);
  }
  const bool uses_batch = is_training() || !options.track_running_stats();
  LOCKSTEP_USAGE(!uses_batch || input.numel() != options.num_features(),
                 "SyncBatchNorm needs more than one value per channel in training");
  const double factor = is_training() ? next_average_factor() : 0.0;
  return torch::batch_norm(input, tensors.weight, tensors.bias, tensors.running_mean,
                           tensors.running_var, uses_batch, factor, options.eps(),
                           /*cudnn_enabled=*/false);
}

at::Tensor SyncBatchNormImpl::synchronized(const at::Tensor& input) {
  Statistics statistics;
  {
    const at::NoGradGuard no_grad;
    statistics = gather_statistics(input.detach().to(at::kDouble), options.eps(), *communicator_);
    LOCKSTEP_USAGE(statistics.count != 1.0,
                   "rank {}: SyncBatchNorm needs more than one value per channel in training, over "
                   "all ranks together",
                   communicator_->rank());
    const double factor = next_average_factor();
    if (tensors.running_mean.defined() && statistics.count > 0) {
      const auto update = [factor](const at::Tensor& running, const at::Tensor& value) {
        running.copy_(running.to(at::kDouble) * (1.0 - factor) + value * factor);
      };
      update(tensors.running_mean, statistics.mean);
      update(tensors.running_var, statistics.sum_squares / (statistics.count - 1.0));
    }
  }
  at::Tensor output = Normalize::apply(input, statistics, *communicator_);
  if (tensors.weight.defined()) {
    output = output * per_channel(tensors.weight, input) +
             per_channel(OwnGradient::apply(tensors.bias), input);
  }
  return output.to(input.scalar_type());
}

namespace {

template <typename BatchNormImpl>
SyncBatchNorm converted(const torch::nn::Module& module, Communicator& communicator) {
  const auto* old = dynamic_cast<const BatchNormImpl*>(&module);
  if (old == nullptr) {
    return nullptr;
  }
  SyncBatchNorm fresh(old->options, communicator,
                      SyncBatchNormImpl::Tensors{old->weight, old->bias, old->running_mean,
                                                 old->running_var, old->num_batches_tracked});
  fresh->train(old->is_training());
  return fresh;
}

struct Replacement {
  torch::nn::SequentialImpl* parent;
  std::string name;  // in the parent
  std::shared_ptr<torch::nn::Module> old;
};

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1d>() != nullptr ||
         module.as<torch::nn::BatchNorm2d>() != nullptr ||
         module.as<torch::nn::BatchNorm3d>() != nullptr;
}

void find_replacements(torch::nn::Module& parent, const std::string& path,
                       std::vector<Replacement>& replacements, std::vector<std::string>& names) {
  for (const auto& child : parent.named_children()) {
    const std::string name = path.empty() ? child.key() : fmt::format("{}.{}", path, child.key());
    if (!is_batch_norm(*child.value())) {
      find_replacements(*child.value(), name, replacements, names);
      continue;
    }
    auto* const sequential = dynamic_cast<torch::nn::SequentialImpl*>(&parent);
    LOCKSTEP_USAGE(sequential != nullptr,
                   "'{}' is a member of a module that is not a Sequential, and nothing outside can "
                   "replace it there: declare that member as lockstep::SyncBatchNorm",
                   name);
    replacements.push_back({sequential, child.key(), child.value()});
    names.push_back(name);
  }
}

}  // namespace

SyncBatchNorm sync_batch_norm_from(const torch::nn::Module& batch_norm,
                                   Communicator& communicator) {
  for (const auto convert :
       {converted<torch::nn::BatchNorm1dImpl>, converted<torch::nn::BatchNorm2dImpl>,
        converted<torch::nn::BatchNorm3dImpl>}) {
    if (const SyncBatchNorm fresh = convert(batch_norm, communicator)) {
      return fresh;
    }
  }
  return nullptr;
}

std::vector<std::string> convert_sync_batch_norm(torch::nn::Module& module,
                                                 Communicator& communicator) {
  std::vector<Replacement> replacements;
  std::vector<std::string> names;
  find_replacements(module, "", replacements, names);
  std::map<const torch::nn::Module*, SyncBatchNorm> fresh;  // one for a module with several names
  for (const Replacement& replacement : replacements) {
    const auto [entry, is_new] = fresh.emplace(replacement.old.get(), nullptr);
    if (is_new) {
      entry->second = sync_batch_norm_from(*replacement.old, communicator);
    }
    replacement.parent->replace_module(replacement.name, entry->second);
    for (torch::nn::AnyModule& slot : *replacement.parent) {
      if (slot.ptr() == replacement.old) {
        slot = torch::nn::AnyModule(entry->second);
      }
    }
  }
  return names;
}

}  // namespace lockstep
