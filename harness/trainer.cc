// SPDX-License-Identifier: Apache-2.0
// The one training loop.
#include "harness/trainer.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <cfenv>
#include <limits>

#include "core/check.h"
#include "core/rng.h"
#include "core/torch_compat.h"
#include "harness/gradients.h"
#include "harness/losses.h"
#include "harness/script.h"
#include "harness/snapshot.h"

namespace lockstep::harness {

namespace {

class Trainer {
 public:
  Trainer(const TrainerParts& parts, std::vector<RankRun>& records, StepRange range)
      : parts_(parts),
        train_(parts.program.value.train),
        records_(records),
        range_(range),
        exact_(parts.program.value.data.exact),
        joins_(parts.program.value.ddp.join != "off"),
        uses_dropout_(uses_dropout(parts.program.value.model)),
        heads_(head_names(parts.program.value.model)),
        script_(parts) {
    for (const Replica& replica : parts.replicas) {
      parameters_.push_back(all_parameters(*replica.model));
      buffers_.push_back(all_buffers(*replica.model));
      buffer_takers_.emplace_back(buffers_.back().names);
    }
    optimizer_names();
    record_initial();
  }

  Ending run() {
    parts_.sync.run([this] { run_steps(); });
    record_final();
    parts_.position.enter(Phase::kDone);
    return script_.leaves() ? Ending::kLeft : Ending::kFinished;
  }

 private:
  void run_steps() {
    std::size_t num_steps = 0;
    for (const Replica& replica : parts_.replicas) {
      num_steps = std::max(num_steps, replica.program->steps.size());
    }
    for (std::size_t at = 0; at < num_steps; ++at) {
      active_.clear();
      for (std::size_t k = 0; k < parts_.replicas.size(); ++k) {
        if (at < parts_.replicas[k].program->steps.size()) {
          active_.push_back(k);
        }
      }
      const StepPlan& plan = step_plan(at);
      if (plan.step < range_.first || plan.step >= range_.end) {
        continue;
      }
      parts_.position.enter_step(plan.step);
      tell(EventKind::kStepBegin, plan.step);
      if (script_.begin_step(plan)) {
        parameters_.front() = all_parameters(*parts_.replicas.front().model);
      }
      if (script_.leaves() || !run_step(at)) {
        break;
      }
      tell(EventKind::kStepEnd, plan.step);
    }
    if (joins_) {
      parts_.position.enter(Phase::kJoin);
    }
  }

  const StepPlan& step_plan(std::size_t at) const {
    return parts_.replicas[active_.front()].program->steps[at];
  }

  // Returns false if the script left the loop.
  bool run_step(std::size_t at) {
    const StepPlan& plan = step_plan(at);
    StepRecord record;
    std::vector<std::vector<double>> losses;
    do {
      record = StepRecord();
      record.step = plan.step;
      losses.assign(parts_.replicas.size(), {});
      attempt(at, record, losses);
      if (script_.leaves()) {
        return false;
      }
    } while (script_.verdict() == AttemptVerdict::kRetry);
    if (script_.verdict() == AttemptVerdict::kSkip) {
      return true;
    }
    script_.after_sync(plan, parameters_.front());
    record.gradients = gradient_taker_->take(gradients_of(parameters_.front().tensors));
    phase(Phase::kUpdate, record);
    if (train_.clip_norm > 0.0 && !script_.clips_before_sync()) {
      clip();
    }
    parts_.optimizer.step();
    phase(Phase::kZeroGrad, record);
    record.parameters = parameter_taker_->take(parameters_.front().tensors);
    record.optimizer = optimizer_taker_->take(optimizer_state());
    finish_record(std::move(record), losses);
    script_.run(plan, "after_step", -1);
    return !script_.leaves();
  }

  // The step up to its update, or until the script thinks better of it.
  void attempt(std::size_t at, StepRecord& record, std::vector<std::vector<double>>& losses) {
    const StepPlan& plan = step_plan(at);
    std::vector<at::Tensor> before_ascent;
    script_.begin_attempt();
    try {
      phase(Phase::kZeroGrad, record);
      zero_grad();
      parts_.sync.begin_step(plan.step);
      before_ascent = ascend(at, record);
      for (std::size_t micro = 0; micro < plan.micro_batches.size() && !script_.stops(); ++micro) {
        run_micro_batch(at, micro, record, losses);
      }
    } catch (const CaughtError&) {
      script_.retry();
    }
    restore(parameters_.front().tensors, before_ascent);
    script_.end_attempt(plan);
  }

  // The first of two passes: rank-local gradients move the parameters, whose values from before
  // are returned; nothing where the script does not ask for it.
  std::vector<at::Tensor> ascend(std::size_t at, StepRecord& record) {
    if (script_.ascends() == 0.0) {
      return {};
    }
    phase(Phase::kForward, record);
    const std::vector<MicroLoss> losses = forward(at, 0, /*sync=*/false);
    phase(Phase::kBackward, record);
    backward(at, losses);
    return move_by_gradients(parameters_.front().tensors, script_.ascends());
  }

  void run_micro_batch(std::size_t at, std::size_t micro, StepRecord& record,
                       std::vector<std::vector<double>>& losses) {
    const StepPlan& plan = step_plan(at);
    const bool sync = plan.micro_batches[micro].sync;
    const auto place = static_cast<std::int64_t>(micro);
    script_.run(plan, "before_forward", place);
    if (script_.stops()) {
      return;
    }
    phase(Phase::kForward, record);
    const std::vector<MicroLoss> of_replicas = forward(at, place, sync);
    parts_.position.note_forward(plan.step, place);
    for (const std::size_t k : active_) {
      losses[k].push_back(of_replicas[k].total.item<double>());
    }
    script_.run(plan, "after_forward", place);
    if (script_.verdict() != AttemptVerdict::kGoOn) {
      return;
    }
    if (!script_.detaches()) {
      phase(Phase::kBackward, record);
      backward(at, of_replicas);
    }
    if (script_.leaves()) {
      return;
    }
    phase(Phase::kSync, record);
    if (sync && script_.clips_before_sync()) {
      clip();
    }
    // DDP reduces inside backward, so where there was none nothing is reduced.
    const bool reduces =
        sync && !(script_.detaches() && reduces_in_backward(parts_.program.value.ddp));
    parts_.sync.after_backward(reduces);
    record.plans.push_back(sync ? parts_.sync.plan() : nullptr);
    phase(Phase::kSync, record);
    script_.run(plan, "after_backward", place);
  }

  // One replica's losses in a micro-batch.
  struct MicroLoss {
    std::vector<at::Tensor> of_forwards;
    at::Tensor total;
  };

  std::vector<MicroLoss> forward(std::size_t at, std::int64_t micro, bool sync) {
    std::vector<MicroLoss> losses(parts_.replicas.size());
    const auto parts_of = [&](std::size_t k) -> const std::vector<Part>& {
      const StepPlan& plan = parts_.replicas[k].program->steps[at];
      return plan.micro_batches[static_cast<std::size_t>(micro)].parts;
    };
    for (std::size_t p = 0; p < parts_of(active_.front()).size(); ++p) {
      if (p > 0) {
        script_.run(step_plan(at), "before_forward", micro, static_cast<std::int64_t>(p));
      }
      std::vector<ReplicaInput> inputs;
      for (const std::size_t k : active_) {
        const Part& part = parts_of(k)[p];
        inputs.push_back({k, parts_.data.inputs(part.samples), &part.route});
        if (is_input_gradient(train_.loss)) {
          inputs.back().input.requires_grad_();
        }
      }
      const auto outputs = run_forward(inputs, {at, micro, static_cast<std::int64_t>(p)}, sync);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const std::size_t k = inputs[i].replica;
        add_losses(parts_of(k)[p], inputs[i], outputs[i], losses[k]);
      }
    }
    for (MicroLoss& loss : losses) {
      loss.total = loss.total.defined() ? loss.total : at::zeros({}, at::kDouble);
    }
    return losses;
  }

  struct DrawPlace {
    std::size_t at;
    std::int64_t micro, part;
  };

  // Dropout draws from LibTorch's generator, which is set anew for each replica.
  std::vector<std::vector<at::Tensor>> run_forward(const std::vector<ReplicaInput>& inputs,
                                                   const DrawPlace& place, bool sync) {
    if (!uses_dropout_ && !parts_.program.separate_forwards) {
      return forward_of(inputs, sync);
    }
    std::vector<std::vector<at::Tensor>> outputs;
    for (const ReplicaInput& input : inputs) {
      const RankProgram& program = *parts_.replicas[input.replica].program;
      CounterRng rng(parts_.program.value.seed, RngStream::kDropout, program.noise_rank,
                     program.steps[place.at].step * train_.micro_batches + place.micro);
      for (std::int64_t part = 0; part < place.part; ++part) {
        rng.next();
      }
      at::Generator generator = at::detail::getDefaultCPUGenerator();
      generator.set_current_seed(rng.next());
      outputs.push_back(std::move(forward_of({input}, sync).front()));
    }
    return outputs;
  }

  // Through the wrapper, or past it.
  std::vector<std::vector<at::Tensor>> forward_of(const std::vector<ReplicaInput>& inputs,
                                                  bool sync) {
    if (!script_.bypasses()) {
      return parts_.sync.forward(inputs, sync);
    }
    std::vector<std::vector<at::Tensor>> outputs;
    for (const ReplicaInput& input : inputs) {
      outputs.push_back(parts_.replicas[input.replica].model->forward(input.input, *input.route));
    }
    return outputs;
  }

  void add_losses(const Part& part, const ReplicaInput& input,
                  const std::vector<at::Tensor>& outputs, MicroLoss& losses) {
    const GraphModel& model = *parts_.replicas[input.replica].model;
    const std::vector<std::string>& without = part.route.without_loss;
    at::Tensor of_forward;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::int64_t head = model.heads_run()[i];
      const std::string& name = heads_[static_cast<std::size_t>(head)];
      if (std::find(without.begin(), without.end(), name) != without.end()) {
        continue;
      }
      const at::Tensor loss =
          part_loss(train_, script_.sums_loss(), part,
                    {input.input, outputs[i], parts_.data.targets(head, part.samples)});
      of_forward = of_forward.defined() ? of_forward + loss : loss;
    }
    if (of_forward.defined()) {
      if (script_.has_bad_batch()) {
        of_forward = of_forward * std::numeric_limits<double>::quiet_NaN();
      }
      losses.of_forwards.push_back(of_forward);
      losses.total = losses.total.defined() ? losses.total + of_forward : of_forward;
    }
  }

  void backward(std::size_t at, const std::vector<MicroLoss>& of_replicas) {
    // The serial reference takes what was meant: all of a micro-batch, in one go. The replay adds
    // up in the subject's order.
    const bool in_parts = parts_.program.role != Role::kSerial;
    const bool each = train_.backward_from == "each" && in_parts;
    const std::int64_t shares = in_parts ? train_.backwards_per_forward : 1;
    std::vector<std::vector<at::Tensor>> roots;  // of one backward after the other
    for (std::size_t k = 0; k < of_replicas.size(); ++k) {
      // W times the loss is what a sum without division amounts to.
      const double scale =
          loss_scale(at, k) *
          (script_.keeps_sum() ? static_cast<double>(parts_.program.value.world.ranks) : 1.0) /
          static_cast<double>(shares);
      const auto losses = each ? of_replicas[k].of_forwards : std::vector{of_replicas[k].total};
      roots.resize(std::max(roots.size(), losses.size()));
      for (std::size_t i = 0; i < losses.size(); ++i) {
        if (losses[i].requires_grad()) {
          roots[i].push_back(scale != 1.0 ? losses[i] * scale : losses[i]);
        }
      }
    }
    for (const std::vector<at::Tensor>& together : roots) {
      for (std::int64_t share = 1; share <= shares && !together.empty(); ++share) {
        torch::autograd::backward(together, {}, /*retain_graph=*/share < shares);
      }
    }
  }

  double loss_scale(std::size_t at, std::size_t k) const {
    const std::vector<StepPlan>& steps = parts_.replicas[k].program->steps;
    return at < steps.size() ? steps[at].loss_scale : 1.0;
  }

  // In exact cases no arithmetic may round; the first phase that does is noted.
  void phase(Phase next, StepRecord& record) {
    if (exact_) {
      if (std::fetestexcept(FE_INEXACT) != 0 && record.inexact_in.empty() && watched_) {
        record.inexact_in = to_string(parts_.position.phase());
      }
      std::feclearexcept(FE_INEXACT);
      watched_ = next != Phase::kZeroGrad;
    }
    parts_.position.enter(next);
  }

  void zero_grad() {
    const at::NoGradGuard no_grad;
    if (train_.zero_grad == "never" || script_.keeps_gradients()) {
      return;
    }
    if (train_.zero_grad == "optimizer" && parts_.program.role == Role::kSubject) {
      parts_.optimizer.zero_grad();
      return;
    }
    const bool to_none = train_.zero_grad == "none" ||
                         (train_.zero_grad == "optimizer" && compat::kOptimizerZeroGradSetsNone);
    for (NamedParameters& of_replica : parameters_) {
      clear_gradients(of_replica.tensors, to_none);
    }
  }

  // Every replica's own, for gradients that nobody zeroes go on from what clipping left of them.
  void clip() {
    for (const std::size_t k : active_) {
      clip_gradients(parameters_[k].tensors, train_.clip_norm);
    }
  }

  void optimizer_names() {
    std::vector<std::string> names;
    const auto& of_model = parameters_.front();
    for (std::size_t i = 0; i < of_model.names.size(); ++i) {
      for (const auto& [role, tensor] : parts_.optimizer.state(static_cast<std::int64_t>(i))) {
        names.push_back(role + "/" + of_model.names[i]);
      }
    }
    optimizer_taker_.emplace(std::move(names));
    gradient_taker_.emplace(of_model.names);
    parameter_taker_.emplace(of_model.names);
  }

  std::vector<at::Tensor> optimizer_state() const {
    std::vector<at::Tensor> result;
    for (std::size_t i = 0; i < parameters_.front().tensors.size(); ++i) {
      for (auto& [role, tensor] : parts_.optimizer.state(static_cast<std::int64_t>(i))) {
        result.push_back(tensor);
      }
    }
    return result;
  }

  void record_initial() {
    if (records_.front().initial_parameters.slots != nullptr) {
      return;  // another range was trained before
    }
    for (std::size_t k = 0; k < parts_.replicas.size(); ++k) {
      records_[k].initial_buffers = buffer_takers_[k].take(buffers_[k].tensors);
    }
    records_.front().initial_parameters = parameter_taker_->take(parameters_.front().tensors);
  }

  void record_final() {
    if (!joins_) {
      return;
    }
    for (std::size_t k = 0; k < parts_.replicas.size(); ++k) {
      records_[k].final_buffers = buffer_takers_[k].take(buffers_[k].tensors);
    }
    records_.front().final_parameters = parameter_taker_->take(parameters_.front().tensors);
  }

  void finish_record(StepRecord record, std::vector<std::vector<double>>& losses) {
    for (const std::size_t k : active_) {
      if (k == 0) {
        continue;
      }
      StepRecord of_replica;
      of_replica.step = record.step;
      of_replica.losses = std::move(losses[k]);
      of_replica.buffers = buffer_takers_[k].take(buffers_[k].tensors);
      records_[k].steps.push_back(std::move(of_replica));
    }
    record.losses = std::move(losses.front());
    record.buffers = buffer_takers_.front().take(buffers_.front().tensors);
    records_.front().steps.push_back(std::move(record));
  }

  void tell(EventKind kind, std::int64_t index) {
    if (parts_.observer != nullptr) {
      parts_.observer->on_event({kind, index});
    }
  }

  const TrainerParts& parts_;  // outlives this: lives in train()'s caller
  const TrainSpec& train_;
  std::vector<RankRun>& records_;
  const StepRange range_;
  bool exact_;
  bool joins_;
  bool watched_ = false;
  bool uses_dropout_;
  const std::vector<std::string> heads_;
  Script script_;
  std::vector<std::size_t> active_;                    // replicas with inputs for this step
  std::vector<NamedParameters> parameters_, buffers_;  // per replica
  std::vector<SnapshotTaker> buffer_takers_;
  std::optional<SnapshotTaker> gradient_taker_, parameter_taker_, optimizer_taker_;
};

}  // namespace

Ending train(const TrainerParts& parts, std::vector<RankRun>& records, StepRange range) {
  LOCKSTEP_CHECK(records.size() == parts.replicas.size() && !records.empty(),
                 "{} records for {} replicas", records.size(), parts.replicas.size());
  return Trainer(parts, records, range).run();
}

}  // namespace lockstep::harness
