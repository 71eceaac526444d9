// SPDX-License-Identifier: Apache-2.0
// The reducer outside backward: construction, hooks, bucket layouts, the sink.
#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>

#include "core/check.h"
#include "core/ddp_sink.h"
#include "core/reducer.h"
#include "core/torch_compat.h"

namespace lockstep {
namespace {

// Runs after a gradient accumulator; `inputs` is what was added to `.grad`.
class GradientHook : public torch::autograd::FunctionPostHook {
 public:
  explicit GradientHook(std::function<void(bool)> on_gradient)
      : on_gradient_(std::move(on_gradient)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    on_gradient_(!inputs.empty() && inputs.front().defined());
    return outputs;
  }

 private:
  std::function<void(bool)> on_gradient_;
};

// Rejects bad parameters before any effect, then says where the used map is reduced.
at::Device checked_device(const std::vector<at::Tensor>& parameters,
                          const std::vector<std::string>& names) {
  LOCKSTEP_USAGE(!parameters.empty(), "a reducer needs at least one parameter");
  LOCKSTEP_USAGE(parameters.size() == names.size(), "{} names for {} parameters", names.size(),
                 parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    LOCKSTEP_USAGE(parameter.defined() && parameter.is_leaf() && parameter.requires_grad(),
                   "parameter {} is not a leaf that requires grad", names[i]);
    LOCKSTEP_USAGE(parameter.layout() == at::kStrided, "parameter {} is sparse: not supported",
                   names[i]);
  }
  return parameters.front().device();
}

}  // namespace

Reducer::Reducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                 Communicator& communicator, const DdpOptions& options, SparseFlags sparse)
    : parameters_(std::move(parameters)),
      names_(std::move(names)),
      sparse_(std::move(sparse)),
      communicator_(&communicator),
      observer_(options.observer),
      caps_{options.first_bucket_cap_bytes, options.bucket_cap_bytes},
      as_view_(options.gradient_as_bucket_view),
      find_unused_(options.find_unused_parameters),
      static_graph_(options.static_graph),
      checks_(options.checks),
      self_(std::make_shared<Reducer*>(this)),
      progress_(static_cast<std::int64_t>(parameters_.size())),
      ready_(parameters_.size(), false),
      used_(static_cast<std::int64_t>(parameters_.size()), checked_device(parameters_, names_)) {
  LOCKSTEP_USAGE(caps_.first_bytes > 0 && caps_.other_bytes > 0,
                 "bucket caps are {} and {} bytes, but must be positive", caps_.first_bytes,
                 caps_.other_bytes);
  sparse_.resize(parameters_.size(), false);
  set_plan(initial_plan(parameters_, caps_, finds_unused(), sparse_));
  register_hooks();
}

Reducer::~Reducer() { remove_hooks(); }

void Reducer::remove_hooks() {
  for (const auto& [accumulator, key] : hooks_) {
    compat::remove_post_hook(*accumulator, key);
  }
  hooks_.clear();
  ready_order_.clear();
  disarm();
}

void Reducer::register_hooks() {
  std::vector<compat::NodePtr> accumulators;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    accumulators.push_back(compat::grad_accumulator(parameters_[i]));
    const bool is_new =
        accumulators_.emplace(accumulators.back().get(), static_cast<std::int64_t>(i)).second;
    LOCKSTEP_USAGE(is_new, "parameter {} is given twice", names_[i]);
  }
  for (std::size_t i = 0; i < accumulators.size(); ++i) {
    const auto parameter = static_cast<std::int64_t>(i);
    const std::uintptr_t key = compat::add_post_hook(
        *accumulators[i], std::make_unique<GradientHook>([this, parameter](bool received) {
          on_gradient(parameter, received);
        }));
    hooks_.emplace_back(std::move(accumulators[i]), key);
  }
}

void Reducer::set_plan(const BucketPlan& plan) {
  LOCKSTEP_CHECK(is_partition(plan, static_cast<std::int64_t>(parameters_.size())),
                 "{} buckets do not hold each of {} parameters once", plan.size(),
                 parameters_.size());
  LOCKSTEP_CHECK(!armed_ && !owed_, "buckets change while hooks count");
  std::vector<Bucket> buckets;
  buckets.reserve(plan.size());
  locations_.assign(parameters_.size(), {});
  for (const auto& indices : plan) {
    for (std::size_t slot = 0; slot < indices.size(); ++slot) {
      locations_[static_cast<std::size_t>(indices[slot])] = {buckets.size(), slot};
    }
    buckets.emplace_back(parameters_, indices, sparse_[static_cast<std::size_t>(indices[0])]);
  }
  buckets_ = std::move(buckets);
  auto layout = std::make_shared<BucketLayout>();
  layout->buckets = plan;
  progress_.set_layout(std::move(layout));
}

// Gradients that exist already move into their new views (D7).
void Reducer::adopt_views() {
  const at::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    if (bucket.is_sparse) {
      continue;  // never views (M7)
    }
    for (const Bucket::Slot& slot : bucket.slots) {
      at::Tensor& gradient = parameters_[static_cast<std::size_t>(slot.parameter)].mutable_grad();
      if (gradient.defined()) {
        check_gradient(slot.parameter, gradient, /*is_sparse=*/false);
        slot.view.copy_(gradient);
        gradient = slot.view;
      }
    }
  }
}

void Reducer::check_finalized() {
  if (owed_) {
    throw noted(unfinished_error());
  }
}

bool Reducer::rebuild_buckets_if_due() {
  check_finalized();
  if (!rebuild_is_due()) {
    return false;
  }
  LOCKSTEP_CHECK(ready_order_.size() == parameters_.size(),
                 "{} gradients were recorded for {} parameters", ready_order_.size(),
                 parameters_.size());
  const BucketPlan plan =
      plan_of_rank_zero(rebuilt_plan(parameters_, caps_, ready_order_, sparse_));
  set_plan(plan);
  if (as_view_) {
    adopt_views();
  }
  ready_order_.clear();
  has_rebuilt_ = true;
  tell(EventKind::kRebuilt, static_cast<std::int64_t>(plan.size()));
  return true;
}

// Two broadcasts, since only rank 0 knows how many buckets there are: all indices with the number
// of buckets behind them, then the sizes of the buckets (D5).
BucketPlan Reducer::plan_of_rank_zero(const BucketPlan& own) {
  const at::NoGradGuard no_grad;
  const at::Device device = parameters_.front().device();
  std::vector<std::int32_t> words;
  std::vector<std::int32_t> sizes;
  for (const auto& indices : own) {
    for (const std::int64_t index : indices) {
      words.push_back(static_cast<std::int32_t>(index));
    }
    sizes.push_back(static_cast<std::int32_t>(indices.size()));
  }
  words.push_back(static_cast<std::int32_t>(own.size()));
  at::Tensor order = at::tensor(words, at::kInt).to(device);
  communicator_->broadcast(order, 0, tag(CallSite::kRebuildOrder))->wait();
  order = order.cpu();
  const auto* index = order.data_ptr<std::int32_t>();
  sizes.resize(static_cast<std::size_t>(index[words.size() - 1]));
  at::Tensor counts = at::tensor(sizes, at::kInt).to(device);
  communicator_->broadcast(counts, 0, tag(CallSite::kRebuildSizes))->wait();
  counts = counts.cpu();
  BucketPlan plan;
  std::int64_t left = static_cast<std::int64_t>(words.size()) - 1;
  for (std::int64_t bucket = 0; bucket < counts.numel(); ++bucket) {
    const std::int32_t count = counts.data_ptr<std::int32_t>()[bucket];
    LOCKSTEP_CHECK(count > 0 && count <= left, "rank 0 sent a bucket of {} parameters", count);
    plan.emplace_back(index, index + count);
    index += count;
    left -= count;
  }
  return plan;
}

std::vector<Use> Reducer::uses_in(const std::vector<at::Tensor*>& outputs) const {
  return search_uses(outputs, accumulators_);
}

bool Reducer::wants_sink(bool synchronized) const {
  return finds_unused() || (static_graph_ && synchronized && (counts_hooks() || all_unused()));
}

bool Reducer::tracks(const at::Tensor& output) const {
  return accumulators_.count(torch::autograd::impl::gradient_edge(output).function.get()) > 0;
}

void Reducer::attach_sink_to(const std::vector<at::Tensor*>& outputs) {
  std::vector<at::Tensor*> wrapped;
  for (at::Tensor* output : outputs) {
    if (output->defined() && output->requires_grad() && (!output->is_leaf() || tracks(*output))) {
      wrapped.push_back(output);
    }
  }
  if (wrapped.empty() && armed_ && (counts_hooks() || all_unused())) {
    for (at::Tensor* output : outputs) {
      if (output->defined() && output->is_floating_point()) {
        wrapped.push_back(output);
      }
    }
  }
  if (wrapped.empty()) {
    return;
  }
  const std::weak_ptr<Reducer*> weak = self_;
  attach_sink(wrapped, [weak] {
    if (const std::shared_ptr<Reducer*> self = weak.lock()) {
      (*self)->on_sink_backward();
    }
  });
}

void Reducer::tell(EventKind kind, std::int64_t index) const {
  if (observer_ != nullptr) {
    observer_->on_event({kind, index});
  }
}

}  // namespace lockstep
