// SPDX-License-Identifier: Apache-2.0
// Carries out scripted events and planted mistakes.
#include "harness/script.h"

#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <unordered_map>

#include "core/error.h"
#include "harness/fault_kinds.h"
#include "harness/trainer.h"
#include "sim/ring_order.h"

namespace lockstep::harness {

void replace_parameter(GraphModel& model, const FaultSpec& fault) {
  const at::Tensor own = model.named_parameters()[fault.parameter];
  if (fault.by == "copy") {
    model.replace_parameter(fault.parameter);
  } else if (fault.by == "round_trip") {
    const at::ScalarType dtype = own.scalar_type();
    own.set_data(own.detach().to(dtype == at::kDouble ? at::kFloat : at::kDouble));
    own.set_data(own.detach().to(dtype));
  } else if (fault.by == "more_rows") {
    model.replace_parameter(fault.parameter,
                            at::cat({own.detach(), at::zeros_like(own.detach().narrow(0, 0, 1))}));
  } else {
    model.tie_parameter(fault.parameter, model.named_parameters()[fault.by]);
  }
}

bool Script::begin_step(const StepPlan& plan) {
  const Case& value = parts_.program.value;
  detaches_ = bypasses_ = keeps_gradients_ = sums_loss_ = keeps_sum_ = clips_before_sync_ =
      has_bad_batch_ = false;
  ascends_ = 0.0;
  num_attempts_ = 0;
  for (const std::size_t index : plan.events) {
    detaches_ = detaches_ || value.at[index].detach;
    const AtSpec& at = value.at[index];
    bypasses_ = bypasses_ || at.bypass;
    keeps_gradients_ = keeps_gradients_ || at.keep_gradients;
    ascends_ = std::max(ascends_, at.ascend);
    if ((at.detach || at.bypass || at.keep_gradients || at.ascend > 0.0) &&
        parts_.disturbances != nullptr) {
      parts_.disturbances->note_event(index);
    }
  }
  bool replaces = false;
  for (const std::size_t index : plan.faults) {
    const FaultSpec& fault = value.faults[index];
    const auto is = [&](const char* kind) {
      if (fault.kind != kind) {
        return false;
      }
      note_fault(index);
      return true;
    };
    // What is a sum already, or a mean over one rank, stays as it is.
    sums_loss_ = (value.train.reduction == "mean" && is("sum_not_mean")) || sums_loss_;
    keeps_sum_ = (value.world.ranks > 1 && is("no_division")) || keeps_sum_;
    clips_before_sync_ = is("clip_before_sync") || clips_before_sync_;
    has_bad_batch_ = is("bad_batch") || has_bad_batch_;
    is("sync_before_last_micro_batch");
    is("window_scale");
    if (plan.step > 0) {
      is("mixed_steps");
    }
    if (!fault.steps.empty() && is("replaced_parameter")) {
      replace_parameter(*parts_.replicas.front().model, fault);
      replaces = true;
    }
    if (is_process_fault(fault.kind) && site_of(fault).empty() && parts_.disturbances != nullptr) {
      parts_.disturbances->fail_process(index);
    }
  }
  return replaces;
}

void Script::note_fault(std::size_t index) {
  if (parts_.disturbances != nullptr) {
    parts_.disturbances->note_fault(index);
  }
}

void Script::begin_attempt() {
  verdict_ = AttemptVerdict::kGoOn;
  has_agreed_ = false;
  if (parts_.disturbances != nullptr) {
    parts_.disturbances->begin_attempt(num_attempts_ == 0);
  }
  ++num_attempts_;
  if (num_attempts_ > 2) {  // nothing is raised and caught in a second attempt
    throw Error(
        fmt::format("attempt {} at one step: the ranks agreed to retry though none asked for "
                    "it; the all_reduce of their verdicts (kMax) gave another number",
                    num_attempts_));
  }
}

void Script::run(const StepPlan& plan, const std::string& when, std::int64_t micro,
                 std::int64_t forward) {
  const Case& value = parts_.program.value;
  for (const std::size_t index : plan.events) {
    // The serial reference has the whole window in one micro-batch.
    const std::int64_t place =
        parts_.program.role == Role::kSerial ? 0 : value.at[index].micro_batch.value_or(0);
    const bool of_forward =
        micro < 0 || (place == micro && value.at[index].forward.value_or(0) == forward);
    const bool here = value.at[index].site.empty() && value.at[index].when == when && of_forward;
    const bool now = parts_.disturbances == nullptr || parts_.disturbances->is_due(index);
    if (here && now && !leaves_) {
      const Phase before = parts_.position.phase();
      parts_.position.enter(Phase::kScript);
      if (parts_.observer != nullptr) {
        parts_.observer->on_event({EventKind::kScript, static_cast<std::int64_t>(index)});
      }
      run_event(value.at[index], index, plan);
      parts_.position.enter(before);
    }
  }
  const auto last = static_cast<std::int64_t>(plan.micro_batches.size()) - 1;
  if (when == value.train.agree && micro == (when == "before_forward" ? 0 : last) && !leaves_) {
    agree(plan);
  }
}

void Script::end_attempt(const StepPlan& plan) {
  if (parts_.program.value.train.agree != "never" && !has_agreed_ && !leaves_) {
    agree(plan);
  }
}

// References know of every rank's verdict, for they follow those that are agreed on.
void Script::agree(const StepPlan& plan) {
  has_agreed_ = true;
  if (parts_.communicator == nullptr) {
    return;
  }
  const Phase before = parts_.position.phase();
  parts_.position.enter(Phase::kScript);
  const at::Tensor flag = at::full({1}, static_cast<std::int64_t>(verdict_), at::kLong);
  parts_.communicator->all_reduce(flag, ReduceOp::kMax, {CallSite::kScript, plan.step, -1})->wait();
  verdict_ = static_cast<AttemptVerdict>(flag.item<std::int64_t>());
  parts_.position.enter(before);
}

void Script::run_event(const AtSpec& at, std::size_t index, const StepPlan& plan) {
  if (parts_.disturbances != nullptr) {
    parts_.disturbances->carry_out(index);
  }
  leaves_ = leaves_ || at.leave;
  if (at.skip_step) {
    verdict_ = std::max(verdict_, AttemptVerdict::kSkip);
  }
  if (!at.collective.empty() && parts_.communicator != nullptr) {
    issue_scripted(*parts_.communicator, parts_.program.value, index, plan.step);
  }
  if (at.evaluate > 0) {
    evaluate(at, plan);
  }
  if (at.add_buffer > 0) {
    add_buffer(at, index);
  }
  if (at.copy_gradients) {
    copy_gradients();
  }
  if (!at.sync_buffers.empty()) {
    sync_buffers(at.sync_buffers == "mean",
                 {CallSite::kScript, plan.step, static_cast<std::int64_t>(index)});
  }
  if (at.scale_buffers != 1.0) {
    scale_buffers(at.scale_buffers);
  }
  set_requires_grad(at.freeze, false);
  set_requires_grad(at.unfreeze, true);
  if (at.lr) {
    parts_.optimizer.set_lr(*at.lr);
  }
}

void Script::add_buffer(const AtSpec& at, std::size_t index) {
  const std::string name = "late" + std::to_string(index);
  for (const Replica& replica : parts_.replicas) {
    if (!replica.model->named_buffers(/*recurse=*/false).contains(name)) {
      replica.model->register_buffer(name, at::zeros({at.add_buffer}));
    }
  }
}

void Script::evaluate(const AtSpec& at, const StepPlan& plan) {
  const at::AutoGradMode grad_mode(at.evaluate_with_gradients);
  const Route everything;
  std::vector<ReplicaInput> inputs;
  for (std::size_t k = 0; k < parts_.replicas.size(); ++k) {
    const std::vector<StepPlan>& steps = parts_.replicas[k].program->steps;
    if (static_cast<std::size_t>(plan.step) >= steps.size()) {
      continue;  // has no inputs
    }
    const auto& micro_batches = steps[static_cast<std::size_t>(plan.step)].micro_batches;
    const auto& samples = micro_batches.front().parts.front().samples;
    inputs.push_back({k, parts_.data.inputs(samples), &everything});
    parts_.replicas[k].model->eval();
  }
  for (std::int64_t i = 0; i < at.evaluate; ++i) {
    if (at.evaluate_through == "wrapper") {
      parts_.sync.forward(inputs, true);
      continue;
    }
    for (const ReplicaInput& input : inputs) {
      parts_.replicas[input.replica].model->forward(input.input, everything);
    }
  }
  for (const Replica& replica : parts_.replicas) {
    replica.model->train();
  }
}

// A replica whose rank has joined shares the gradients of one that trains on, and goes on to.
void Script::copy_gradients() {
  std::unordered_map<const c10::TensorImpl*, at::Tensor> copies;
  for (const Replica& replica : parts_.replicas) {
    for (at::Tensor& parameter : all_parameters(*replica.model).tensors) {
      const at::Tensor old = parameter.grad();
      if (old.defined()) {
        at::Tensor& copy = copies[old.unsafeGetTensorImpl()];
        copy = copy.defined() ? copy : old.detach().clone();
        parameter.mutable_grad() = copy;
        parts_.sync.gradient_was_copied(parameter, old);
      }
    }
  }
}

// A process with the replicas of all ranks adds up in the order of the ring, as the ranks do; one
// replica alone has nothing to agree on. Counters are rank 0's either way.
void Script::sync_buffers(bool mean, const CollectiveTag& tag) {
  const at::NoGradGuard no_grad;
  std::vector<NamedParameters> buffers;
  for (const Replica& replica : parts_.replicas) {
    buffers.push_back(all_buffers(*replica.model));
  }
  const auto ranks = static_cast<double>(parts_.program.value.world.ranks);
  for (std::size_t i = 0; i < buffers.front().tensors.size(); ++i) {
    std::vector<at::Tensor> replicas;
    for (const NamedParameters& of_replica : buffers) {
      replicas.push_back(of_replica.tensors[i]);
    }
    at::Tensor& first = replicas.front();
    const bool adds = mean && first.is_floating_point();
    if (parts_.communicator != nullptr) {
      const std::unique_ptr<Work> work =
          adds ? parts_.communicator->all_reduce(first, ReduceOp::kSum, tag)
               : parts_.communicator->broadcast(first, 0, tag);
      work->wait();
    } else if (adds && replicas.size() > 1) {
      sim::ring_all_reduce(replicas, ReduceOp::kSum);
    }
    for (at::Tensor& buffer : replicas) {
      if (adds && (parts_.communicator != nullptr || replicas.size() > 1)) {
        buffer.div_(ranks);
      } else if (!adds) {
        buffer.copy_(first);
      }
    }
  }
}

void Script::scale_buffers(double factor) {
  const at::NoGradGuard no_grad;
  for (const Replica& replica : parts_.replicas) {
    for (at::Tensor& buffer : all_buffers(*replica.model).tensors) {
      if (buffer.is_floating_point()) {
        buffer.mul_(factor);
      }
    }
  }
}

void Script::set_requires_grad(const std::vector<std::string>& names, bool value) {
  for (const std::string& name : names) {
    for (const Replica& replica : parts_.replicas) {
      for (auto& item : replica.model->named_parameters()) {
        if (item.key() == name || item.key().rfind(name + ".", 0) == 0) {
          item.value().set_requires_grad(value);
        }
      }
    }
  }
}

void Script::after_sync(const StepPlan& plan, NamedParameters& parameters) {
  const at::NoGradGuard no_grad;
  const Case& value = parts_.program.value;
  const bool keeps_previous =
      std::any_of(value.faults.begin(), value.faults.end(),
                  [](const FaultSpec& fault) { return fault.kind == "stale_gradient"; });
  std::vector<at::Tensor> current;
  if (keeps_previous && parts_.program.role == Role::kSubject) {
    for (const at::Tensor& parameter : parameters.tensors) {
      current.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
    }
  }
  for (const std::size_t index : plan.faults) {
    const FaultSpec& fault = value.faults[index];
    for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
      at::Tensor& parameter = parameters.tensors[i];
      if (!parameter.grad().defined() ||
          (!fault.parameter.empty() && fault.parameter != parameters.names[i])) {
        continue;
      }
      if (fault.kind == "stale_gradient" && i < previous_gradients_.size() &&
          previous_gradients_[i].defined()) {
        parameter.mutable_grad().copy_(previous_gradients_[i]);
        note_fault(index);
      } else if (fault.kind == "corrupt_gradient") {
        at::Tensor first = elements_of(parameter.mutable_grad()).view({-1}).narrow(0, 0, 1);
        first.copy_(at::nextafter(first, at::full_like(first, INFINITY)));
        note_fault(index);
      }
    }
  }
  previous_gradients_ = std::move(current);
}

}  // namespace lockstep::harness
