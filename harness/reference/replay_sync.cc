// SPDX-License-Identifier: Apache-2.0
// DDP's arithmetic, worked out in one process from the rules.
#include "harness/reference/replay_sync.h"

#include <torch/types.h>

#include <algorithm>

#include "core/check.h"
#include "harness/gradients.h"
#include "harness/program.h"
#include "harness/reference/joint_outputs.h"
#include "harness/snapshot.h"
#include "sim/ring_order.h"

namespace lockstep::harness {
namespace {

at::Tensor copy_of(const at::Tensor& gradient) {
  return gradient.defined() ? plain(gradient).clone() : at::Tensor();
}

}  // namespace

ReplaySync::ReplaySync(const Case& value, std::vector<std::shared_ptr<GraphModel>> models,
                       const Run& recorded, ReplayDetails* details)
    : value_(value),
      recorded_(recorded),
      details_(details),
      models_(std::move(models)),
      num_steps_(steps_by_rank(value)) {
  for (const auto& model : models_) {
    parameters_.push_back(trainable_parameters(*model));
    buffers_.push_back(all_buffers(*model));
  }
  const std::size_t num_parameters = parameters_.front().tensors.size();
  const std::vector<std::string> sparse = sparse_parameters(value.model);
  for (const std::string& name : parameters_.front().names) {
    sparse_.push_back(std::find(sparse.begin(), sparse.end(), name) != sparse.end());
  }
  marks_.assign(models_.size(), std::vector<UseMark>(num_parameters));
  met_.assign(models_.size(), std::vector<bool>(num_parameters, false));
  static_used_.assign(num_parameters, false);
  views_.assign(models_.size(), std::vector<at::Tensor>(num_parameters));
  before_micro_.assign(models_.size(), std::vector<at::Tensor>(num_parameters));
}

// O3: among the ranks that had most inputs the highest has the state that all take over. The
// replicas share their parameters.
void ReplaySync::run(const std::function<void()>& loop) {
  loop();
  if (value_.ddp.join != "off" && value_.ddp.broadcast_buffers) {
    const auto last = std::max_element(num_steps_.rbegin(), num_steps_.rend());
    sync_buffers(static_cast<std::size_t>(num_steps_.rend() - last - 1));
  }
}

// A reload is a wrapper of its own, whose buckets no gradient lies in yet. Its construction gives
// all ranks rank 0's buffers (A6), and its first forward does (J2).
void ReplaySync::reload_wrappers(std::int64_t first, std::int64_t last) {
  for (const AtSpec& at : value_.at) {
    for (std::int64_t step = first; at.reload && step <= last; ++step) {
      for (std::size_t rank = 0; covers(at.steps, step) && rank < views_.size(); ++rank) {
        if (covers(at.ranks, static_cast<std::int64_t>(rank))) {
          views_[rank].assign(views_[rank].size(), at::Tensor());
          num_reductions_ = 0;
          has_rebuilt_ = false;
        }
      }
      if (covers(at.steps, step) && all_ranks_do(value_, at, step)) {
        buffers_due_ = true;
        if (value_.ddp.init_sync && value_.ddp.broadcast_buffers) {
          sync_buffers(0);
        }
      }
    }
  }
}

void ReplaySync::begin_step(std::int64_t step) {
  reload_wrappers(step_ + 1, step);  // steps that were skipped included
  step_ = step;
  active_.clear();
  for (std::size_t rank = 0; rank < models_.size(); ++rank) {
    if (is_active(rank)) {
      active_.push_back(rank);
    }
  }
  micro_ = -1;
  mark_use();
  if (details_ != nullptr && details_->step == step) {
    details_->micro_contributions.assign(models_.size(), {});
  }
}

std::vector<std::vector<at::Tensor>> ReplaySync::forward(const std::vector<ReplicaInput>& inputs,
                                                         bool sync) {
  if (inputs.front().replica == active_.front() && value_.ddp.broadcast_buffers && buffers_due_) {
    sync_buffers(value_.ddp.join == "off" ? 0 : active_.back());  // J2
  }
  take_into_rebuilt_buckets();
  if (inputs.back().replica == active_.back()) {
    // J4: what this forward is decides whether the next one synchronises buffers.
    buffers_due_ = sync && at::GradMode::is_enabled();
  }
  std::vector<ReplicaForward> forwards;
  for (const ReplicaInput& input : inputs) {
    forwards.push_back({models_[input.replica].get(), input.input, input.route});
  }
  std::vector<std::vector<at::Tensor>> outputs = forward_together(forwards);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    note_met(inputs[i], outputs[i]);
    if (wants_sink(sync)) {
      join_outputs(outputs[i], parameters_[inputs[i].replica].tensors);
    }
  }
  return outputs;
}

// E9.
bool ReplaySync::wants_sink(bool sync) const {
  const bool wants =
      value_.ddp.static_graph ? sync && num_reductions_ == 0 : value_.ddp.find_unused_parameters;
  return wants && reduces_in_backward(value_.ddp) && at::GradMode::is_enabled();
}

// I8: behind an output that does not enter the loss, backward comes by with no gradient; the old
// one that lies there counts as used.
void ReplaySync::note_met(const ReplicaInput& input, const std::vector<at::Tensor>& outputs) {
  if (!value_.ddp.find_unused_parameters || input.route->without_loss.empty()) {
    return;
  }
  const std::vector<bool> behind = lie_behind(outputs, parameters_[input.replica].tensors);
  for (std::size_t i = 0; i < behind.size(); ++i) {
    met_[input.replica][i] = met_[input.replica][i] || behind[i];
  }
}

// D7: the next forward with gradients rebuilds buckets (D3; of a static graph the one after its
// second reduction, D6), and what gradients there are come to lie in the new ones.
void ReplaySync::take_into_rebuilt_buckets() {
  const std::int64_t due = value_.ddp.static_graph ? 2 : 1;
  if (has_rebuilt_ || num_reductions_ < due || value_.ddp.find_unused_parameters ||
      !at::GradMode::is_enabled()) {
    return;
  }
  has_rebuilt_ = true;
  for (std::size_t rank = 0; rank < models_.size(); ++rank) {
    for (std::size_t i = 0; i < sparse_.size(); ++i) {
      if (!sparse_[i]) {
        views_[rank][i] = parameters_[rank].tensors[i].grad();
      }
    }
  }
}

void ReplaySync::sync_buffers(std::size_t source) {
  const at::NoGradGuard no_grad;
  for (std::size_t rank = 0; rank < models_.size(); ++rank) {
    for (std::size_t i = 0; rank != source && i < buffers_[rank].tensors.size(); ++i) {
      // A buffer that a graph has saved stays valid where it does not change.
      if (!buffers_[rank].tensors[i].equal(buffers_[source].tensors[i])) {
        buffers_[rank].tensors[i].copy_(buffers_[source].tensors[i]);
      }
    }
  }
}

// O2: joined ranks count as zeros, or not at all.
double ReplaySync::divisor() const {
  return static_cast<double>(value_.ddp.join == "divide_by_active" ? active_.size()
                                                                   : models_.size());
}

void ReplaySync::mark_use() {
  for (std::size_t rank = 0; rank < models_.size(); ++rank) {
    for (std::size_t i = 0; i < marks_[rank].size(); ++i) {
      const at::Tensor& gradient = parameters_[rank].tensors[i].grad();
      met_[rank][i] = false;
      marks_[rank][i].gradient = gradient;
      marks_[rank][i].version =
          gradient.defined() ? static_cast<std::int64_t>(gradient._version()) : -1;
    }
  }
}

// What was not used before is not used by being copied.
void ReplaySync::gradient_was_copied(const at::Tensor& parameter, const at::Tensor& old) {
  for (std::size_t rank = 0; rank < models_.size(); ++rank) {
    for (std::size_t i = 0; i < marks_[rank].size(); ++i) {
      UseMark& mark = marks_[rank][i];
      if (parameters_[rank].tensors[i].is_same(parameter) && old.is_same(mark.gradient) &&
          mark.version == static_cast<std::int64_t>(old._version())) {
        mark.gradient = parameter.grad();
        mark.version = static_cast<std::int64_t>(mark.gradient._version());
      }
    }
  }
}

// A parameter was used in the window if its gradient was written to since the window began.
bool ReplaySync::used(std::size_t rank, std::size_t index) const {
  const at::Tensor& gradient = parameters_[rank].tensors[index].grad();
  const UseMark& mark = marks_[rank][index];
  return gradient.defined() && (met_[rank][index] || !gradient.is_same(mark.gradient) ||
                                static_cast<std::int64_t>(gradient._version()) != mark.version);
}

bool ReplaySync::aliased(std::size_t rank, std::size_t index) const {
  const at::Tensor& gradient = parameters_[rank].tensors[index].grad();
  return value_.ddp.gradient_as_bucket_view && gradient.defined() &&
         gradient.is_same(views_[rank][index]);
}

void ReplaySync::find_plan() {
  plan_ = nullptr;
  // All ranks have the same buckets.
  const StepRecord* step = find_step(recorded_.ranks[active_.front()], step_);
  for (std::size_t micro = 0; step != nullptr && micro < step->plans.size(); ++micro) {
    // A subject that synchronised another micro-batch than it should have still shows its buckets.
    if (step->plans[micro] != nullptr &&
        (plan_ == nullptr || static_cast<std::int64_t>(micro) == micro_)) {
      plan_ = step->plans[micro];
    }
  }
  // What the subject left out should have been reduced all the same, so it gets a bucket here.
  ReductionPlan whole = plan_ != nullptr ? *plan_ : ReductionPlan();
  std::vector<bool> planned(parameters_.front().tensors.size(), false);
  for (const auto& bucket : whole.buckets) {
    for (const std::int64_t index : bucket) {
      planned[static_cast<std::size_t>(index)] = true;
    }
  }
  const std::size_t num_planned = whole.buckets.size();
  for (std::size_t i = 0; i < planned.size(); ++i) {
    if (!planned[i]) {
      whole.buckets.push_back({static_cast<std::int64_t>(i)});
    }
  }
  if (plan_ == nullptr || whole.buckets.size() > num_planned) {
    plan_ = std::make_shared<const ReductionPlan>(std::move(whole));
  }
}

void ReplaySync::after_backward(bool sync) {
  const at::NoGradGuard no_grad;
  ++micro_;
  note_micro_batch();
  if (!sync) {
    return;
  }
  ++num_reductions_;
  find_plan();
  if (details_ != nullptr && details_->step == step_) {
    details_->divisor = static_cast<std::int64_t>(divisor());
    details_->contributions.assign(models_.size(), {});
    for (std::size_t rank = 0; rank < models_.size(); ++rank) {
      for (const at::Tensor& parameter : parameters_[rank].tensors) {
        details_->contributions[rank].push_back(is_active(rank) ? copy_of(parameter.grad())
                                                                : at::Tensor());
      }
    }
  }
  for (const auto& bucket : plan_->buckets) {
    if (bucket.size() == 1 && sparse_[static_cast<std::size_t>(bucket[0])]) {
      reduce_sparse(static_cast<std::size_t>(bucket[0]));
    } else {
      reduce_bucket(bucket);
    }
  }
  // The optimizer takes the first replica's gradients, whether or not its rank has joined.
  for (std::size_t i = 0; !is_active(0) && i < parameters_.front().tensors.size(); ++i) {
    parameters_.front().tensors[i].mutable_grad() = parameters_[active_.front()].tensors[i].grad();
  }
  note_reduction();
  mark_use();
}

at::Tensor ReplaySync::contribution(std::size_t rank, std::size_t index) const {
  const at::Tensor& parameter = parameters_[rank].tensors[index];
  const at::Tensor& gradient = parameter.grad();
  if (!is_active(rank) || !gradient.defined()) {
    return elements_of(at::zeros_like(parameter)).reshape({-1});
  }
  const at::Tensor flat = plain(gradient).reshape({-1});
  if (plan_->division == Division::kAfter || value_.ddp.hook != "none") {
    return flat;
  }
  // G3: copied gradients are scaled by the reciprocal, aliased ones are divided in place.
  return aliased(rank, index) ? flat.div(divisor()) : flat.mul(1.0 / divisor());
}

// N6: a compressing hook casts first; then all of them divide in place, in the type they sum in.
at::Tensor ReplaySync::prepared_as_hook(const at::Tensor& gradient) const {
  const std::string& hook = value_.ddp.hook;
  at::Tensor prepared = hook == "fp16_compress"   ? gradient.to(at::kHalf)
                        : hook == "bf16_compress" ? gradient.to(at::kBFloat16)
                                                  : gradient;
  return prepared / static_cast<double>(models_.size());
}

void ReplaySync::reduce_bucket(const std::vector<std::int64_t>& bucket) {
  if (bucket.empty()) {
    return;
  }
  std::vector<at::Tensor> by_rank;
  for (std::size_t rank = 0; rank < models_.size(); ++rank) {
    std::vector<at::Tensor> pieces;
    for (const std::int64_t index : bucket) {
      pieces.push_back(contribution(rank, static_cast<std::size_t>(index)));
    }
    const at::Tensor whole = pieces.size() == 1 ? pieces.front().clone() : at::cat(pieces);
    by_rank.push_back(value_.ddp.hook == "none" ? whole : prepared_as_hook(whole));
  }
  sim::ring_all_reduce(by_rank, ReduceOp::kSum);
  at::Tensor& result = by_rank.front();
  if (plan_->division == Division::kAfter) {
    result.div_(static_cast<double>(models_.size()));
  }
  std::int64_t offset = 0;
  for (const std::int64_t index : bucket) {
    const at::Tensor& parameter = parameters_.front().tensors[static_cast<std::size_t>(index)];
    const at::Tensor average = at::empty_like(parameter).detach();
    const at::Tensor elements = elements_of(average);
    elements.copy_(result.narrow(0, offset, elements.numel()).view(elements.sizes()));
    deliver(static_cast<std::size_t>(index), average);
    offset += elements.numel();
  }
}

// G8: what each rank looked up is divided and then added row by row, in rank order; with a hook in
// the type that it sums in.
void ReplaySync::reduce_sparse(std::size_t index) {
  const at::Tensor& parameter = parameters_.front().tensors[index];
  at::Tensor sum;
  at::Tensor touched = at::zeros({parameter.size(0)}, at::kBool);
  for (const std::size_t rank : active_) {
    const at::Tensor& gradient = parameters_[rank].tensors[index].grad();
    if (gradient.defined() && gradient._nnz() > 0) {
      const at::Tensor own =
          (value_.ddp.hook == "none" ? gradient / divisor() : prepared_as_hook(gradient))
              .coalesce();
      const at::Tensor rows = own.indices()[0];
      if (!sum.defined()) {
        sum = at::zeros(parameter.sizes(), own.values().options());
      }
      sum.index_add_(0, rows, own.values());
      touched.index_fill_(0, rows, true);
    }
  }
  const at::Tensor rows = touched.nonzero().squeeze(1);
  const at::Tensor values = (sum.defined() ? sum : at::zeros_like(parameter))
                                .index_select(0, rows)
                                .to(parameter.scalar_type());
  deliver(index,
          at::sparse_coo_tensor(rows.unsqueeze(0), values, parameter.sizes())._coalesced_(true));
}

// I7: a parameter that no rank used keeps its gradient, except where that gradient lies in the
// bucket and so is reduced with it. With views every dense gradient does: one that came from
// elsewhere is copied in (F11), and lies there from then on.
bool ReplaySync::keeps_gradient(std::size_t rank, std::size_t index, bool is_used) const {
  const bool knows_use = value_.ddp.find_unused_parameters || value_.ddp.static_graph;
  const bool lies_in_bucket = value_.ddp.gradient_as_bucket_view && !sparse_[index] &&
                              parameters_[rank].tensors[index].grad().defined();
  return plan_->division == Division::kBefore && knows_use && !is_used && !lies_in_bucket;
}

// A static graph keeps the map of its first reduction, even when those who used it have joined
// (L6).
bool ReplaySync::used_anywhere(std::size_t index) {
  const bool used_now = std::any_of(active_.begin(), active_.end(),
                                    [&](std::size_t rank) { return used(rank, index); });
  if (!value_.ddp.static_graph) {
    return used_now;
  }
  if (num_reductions_ == 1) {
    static_used_[index] = used_now;
  }
  return static_used_[index];
}

void ReplaySync::deliver(std::size_t index, const at::Tensor& average) {
  const bool is_used = used_anywhere(index);
  for (const std::size_t rank : active_) {
    if (keeps_gradient(rank, index, is_used)) {
      continue;
    }
    at::Tensor& parameter = parameters_[rank].tensors[index];
    if (parameter.grad().defined()) {
      parameter.mutable_grad().copy_(average);
    } else {
      parameter.mutable_grad() = average.clone();
    }
    // Sparse gradients are never views (M7).
    views_[rank][index] = average.is_sparse() ? at::Tensor() : parameter.grad();
  }
}

void ReplaySync::note_micro_batch() {
  if (details_ == nullptr || details_->step != step_) {
    return;
  }
  for (std::size_t rank = 0; rank < models_.size(); ++rank) {
    std::vector<at::Tensor> added;
    for (std::size_t i = 0; i < parameters_[rank].tensors.size(); ++i) {
      const at::Tensor gradient = plain(parameters_[rank].tensors[i].grad());
      const at::Tensor& before = before_micro_[rank][i];
      const bool first = details_->micro_contributions[rank].empty();
      if (!is_active(rank) || !gradient.defined()) {
        added.emplace_back();
      } else {
        added.push_back(first || !before.defined() ? gradient.clone() : gradient - before);
      }
      before_micro_[rank][i] = gradient.defined() ? gradient.clone() : at::Tensor();
    }
    details_->micro_contributions[rank].push_back(std::move(added));
  }
}

void ReplaySync::note_reduction() {
  if (details_ == nullptr || (details_->step != step_ && details_->step != step_ + 1)) {
    return;
  }
  std::vector<at::Tensor> reduced;
  for (const at::Tensor& parameter : parameters_.front().tensors) {
    reduced.push_back(copy_of(parameter.grad()));
  }
  (details_->step == step_ ? details_->reduced : details_->previous_reduced) = std::move(reduced);
}

}  // namespace lockstep::harness
