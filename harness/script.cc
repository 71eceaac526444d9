// SPDX-License-Identifier: Apache-2.0
// Carries out scripted events and planted mistakes.
#include "harness/script.h"

#include <signal.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>

#include "core/check.h"
#include "harness/trainer.h"

namespace lockstep::harness {

void Script::begin_step(const StepPlan& plan) {
  const Case& value = parts_.program.value;
  skips_step_ = detaches_ = sums_loss_ = keeps_sum_ = clips_before_sync_ = false;
  for (const std::size_t index : plan.events) {
    skips_step_ = skips_step_ || value.at[index].skip_step;
    detaches_ = detaches_ || value.at[index].detach;
  }
  for (const std::size_t index : plan.faults) {
    const std::string& kind = value.faults[index].kind;
    sums_loss_ = sums_loss_ || kind == "sum_not_mean";
    keeps_sum_ = keeps_sum_ || kind == "no_division";
    clips_before_sync_ = clips_before_sync_ || kind == "clip_before_sync";
    if (kind == "exit") {
      ::_exit(3);
    }
    if (kind == "crash") {
      ::kill(::getpid(), SIGKILL);
    }
  }
}

void Script::run(const StepPlan& plan, const std::string& when, std::int64_t micro) {
  const Case& value = parts_.program.value;
  for (const std::size_t index : plan.events) {
    // The serial reference has the whole window in one micro-batch.
    const std::int64_t place =
        parts_.program.role == Role::kSerial ? 0 : value.at[index].micro_batch.value_or(0);
    const bool now = micro < 0 || place == micro;
    if (value.at[index].when == when && now && !leaves_) {
      const Phase before = parts_.position.phase();
      parts_.position.enter(Phase::kScript);
      if (parts_.observer != nullptr) {
        parts_.observer->on_event({EventKind::kScript, static_cast<std::int64_t>(index)});
      }
      run_event(value.at[index], index, plan);
      parts_.position.enter(before);
    }
  }
}

void Script::run_event(const AtSpec& at, std::size_t index, const StepPlan& plan) {
  if (!at.raise.empty()) {
    throw ScriptError(at.raise);
  }
  leaves_ = leaves_ || at.leave;
  if (at.sleep_ms > 0 && parts_.sleep_ns) {
    parts_.sleep_ns(at.sleep_ms * 1'000'000);
  }
  if (!at.collective.empty() && parts_.communicator != nullptr) {
    issue_collective(at, index, plan.step);
  }
  if (at.evaluate > 0) {
    evaluate(at, plan);
  }
  set_requires_grad(at.freeze, false);
  set_requires_grad(at.unfreeze, true);
  if (at.lr) {
    parts_.optimizer.set_lr(*at.lr);
  }
}

void Script::issue_collective(const AtSpec& at, std::size_t index, std::int64_t step) {
  Communicator& communicator = *parts_.communicator;
  // The position in the file tells two scripted collectives of the same shape apart; entries that
  // say the same for other ranks are one.
  const std::vector<AtSpec>& all = parts_.program.value.at;
  const auto first = std::find_if(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(index),
                                  [&](const AtSpec& other) { return same_action(at, other); });
  const CollectiveTag tag{CallSite::kScript, step, first - all.begin()};
  const at::Tensor tensor = at::ones({at.collective_numel});
  std::unique_ptr<Work> work;
  if (at.collective == "all_reduce") {
    work = communicator.all_reduce(tensor, ReduceOp::kSum, tag);
  } else if (at.collective == "broadcast") {
    work = communicator.broadcast(tensor, 0, tag);
  } else if (at.collective == "all_gather") {
    work = communicator.all_gather(at::empty({communicator.world_size(), at.collective_numel}),
                                   tensor, tag);
  } else {
    work = communicator.barrier({CallSite::kBarrier, step, tag.bucket});
  }
  work->wait();
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
      } else if (fault.kind == "corrupt_gradient") {
        at::Tensor first = elements_of(parameter.mutable_grad()).view({-1}).narrow(0, 0, 1);
        first.copy_(at::nextafter(first, at::full_like(first, INFINITY)));
      }
    }
  }
  previous_gradients_ = std::move(current);
}

}  // namespace lockstep::harness
