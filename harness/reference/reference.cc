// SPDX-License-Identifier: Apache-2.0
// Runs the training loop in one process, as the replay reference and as the serial one.
#include "harness/reference/reference.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <type_traits>

#include "core/check.h"
#include "core/rng.h"
#include "harness/dataset.h"
#include "harness/graph_model.h"
#include "harness/optimizer.h"
#include "harness/reference/replay_sync.h"
#include "harness/snapshot.h"
#include "harness/trainer.h"

namespace lockstep::harness {
namespace {

// One process has nothing to synchronise.
class NoSync final : public GradientSync {
 public:
  /// `dither`: a seed for moving parameters, inputs of blocks and gradients, or 0. `is_wide`:
  /// inputs and targets are float64.
  NoSync(std::shared_ptr<GraphModel> model, std::uint64_t dither, bool is_wide)
      : model_(std::move(model)),
        parameters_(all_parameters(*model_).tensors),
        dither_(dither),
        is_wide_(is_wide) {
    if (dither_ != 0) {
      model_->move_inputs([this](const at::Tensor& input) { return moved_relative(input); });
    }
  }
  ~NoSync() override { model_->move_inputs({}); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  void run(const std::function<void()>& loop) override { loop(); }
  void begin_step(std::int64_t step) override {
    step_ = step;
    if (dither_ != 0) {
      inputs_ = CounterRng(dither_, RngStream::kOther, 3, step_);
      CounterRng rng(dither_, RngStream::kOther, 2, step_);
      for (const at::Tensor& parameter : parameters_) {
        move_relative(parameter.detach(), rng);
      }
    }
  }
  std::vector<std::vector<at::Tensor>> forward(const std::vector<ReplicaInput>& inputs,
                                               bool) override {
    return {model_->forward(inputs.front().input, *inputs.front().route)};
  }
  // Once a step, so that accumulating over more pieces does not move gradients further.
  void after_backward(bool last) override {
    if (dither_ == 0 || !last) {
      return;
    }
    CounterRng rng(dither_, RngStream::kOther, 1, step_);
    move_gradients(rng);
  }
  std::shared_ptr<const ReductionPlan> plan() const override { return nullptr; }
  ReducerState state() const override { return {}; }

 private:
  // Every element that is not 0 goes up or down by u = epsilon / 2 of the largest gradient. What is
  // rounded anywhere reaches every gradient: the epsilon of the coarsest parameter, or of the loss,
  // which is taken in the type of the targets.
  void move_gradients(CounterRng& rng) {
    double largest = 0.0;
    double epsilon =
        is_wide_ ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
    for (const at::Tensor& parameter : parameters_) {
      if (at::elementSize(at::toRealValueType(parameter.scalar_type())) == sizeof(float)) {
        epsilon = std::numeric_limits<float>::epsilon();
      }
      dispatch(parameter.grad(), [&](auto* elements, std::int64_t numel) {
        for (std::int64_t i = 0; i < numel; ++i) {
          largest = std::max(largest, static_cast<double>(std::abs(elements[i])));
        }
      });
    }
    const double move = largest * epsilon / 2;
    for (const at::Tensor& parameter : parameters_) {
      for_each_signed(parameter.grad(), rng, [move](auto& g, auto sign) {
        g += g != 0 ? sign * static_cast<std::decay_t<decltype(g)>>(move) : 0;
      });
    }
  }

  // Every element goes up or down by epsilon of itself: what the forward makes of that is what it
  // makes of its own rounding.
  static void move_relative(const at::Tensor& tensor, CounterRng& rng) {
    for_each_signed(tensor, rng, [](auto& w, auto sign) {
      w += sign * w * std::numeric_limits<std::decay_t<decltype(w)>>::epsilon();
    });
  }

  // What goes into a block, likewise: where its terms cancel, as in a norm over one number, its
  // output is the rounding of terms that neither its output nor its parameters show.
  at::Tensor moved_relative(const at::Tensor& input) {
    const at::ScalarType real = at::toRealValueType(input.scalar_type());
    if (real != at::kDouble && real != at::kFloat) {
      return input;  // indices
    }
    const at::Tensor factors = at::ones(input.sizes(), real);
    move_relative(factors, inputs_);
    return input * factors;
  }

  template <typename Body>
  static void dispatch(const at::Tensor& tensor, const Body& body) {
    if (!tensor.defined()) {
      return;
    }
    const at::Tensor elements = elements_of(tensor);
    LOCKSTEP_CHECK(elements.is_contiguous(), "a tensor of {} elements is not contiguous",
                   elements.numel());
    if (elements.scalar_type() == at::kDouble) {
      body(elements.data_ptr<double>(), elements.numel());
    } else {
      body(elements.data_ptr<float>(), elements.numel());
    }
  }

  // `body(element, sign)` with a random sign, 1 or -1, for each.
  template <typename Body>
  static void for_each_signed(const at::Tensor& tensor, CounterRng& rng, const Body& body) {
    dispatch(tensor, [&](auto* elements, std::int64_t numel) {
      std::uint64_t bits = 0;
      for (std::int64_t i = 0; i < numel; ++i) {
        bits = i % 64 == 0 ? rng.next() : bits >> 1;
        // Without a branch: half of its predictions would be wrong.
        body(elements[i],
             static_cast<std::decay_t<decltype(*elements)>>(1 - 2 * static_cast<int>(bits & 1)));
      }
    });
  }

  std::shared_ptr<GraphModel> model_;
  std::vector<at::Tensor> parameters_;
  std::uint64_t dither_;
  bool is_wide_;
  std::int64_t step_ = 0;
  CounterRng inputs_{0, RngStream::kOther};  // of this step
};

// Each part of the model keeps its kind of number; only the width changes.
void convert(GraphModel& model, const std::string& dtype) {
  const at::ScalarType real = dtype == "float64" ? at::kDouble : at::kFloat;
  for (const at::Tensor& parameter : all_parameters(model).tensors) {
    parameter.set_data(
        parameter.detach().to(parameter.is_complex() ? at::toComplexType(real) : real));
  }
  for (const at::Tensor& buffer : all_buffers(model).tensors) {
    if (buffer.is_floating_point()) {
      buffer.set_data(buffer.to(real));
    }
  }
}

std::shared_ptr<GraphModel> build_model(const Program& program) {
  const Case& value = program.value;
  return std::make_shared<GraphModel>(value.model, value.data.exact, value.seed, 0);
}

void share_parameters(const GraphModel& from, GraphModel& to) {
  const auto source = all_parameters(from).tensors;
  const auto target = all_parameters(to).tensors;
  LOCKSTEP_CHECK(source.size() == target.size(), "{} and {} parameters", source.size(),
                 target.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    target[i].set_data(source[i].detach());
  }
}

Run to_run(std::vector<RankRun> records) {
  Run run;
  run.ranks = std::move(records);
  return run;
}

// The same global batches, accumulated over `variant.splits` pieces of a shuffled order.
Program reorder(const Program& program, const SerialVariant& variant) {
  Program result = program;
  for (StepPlan& plan : result.ranks.front().steps) {
    const MicroBatch whole = plan.micro_batches.front();
    plan.micro_batches.clear();
    for (std::int64_t split = 0; split < variant.splits; ++split) {
      MicroBatch piece;
      piece.sync = false;
      for (const Part& part : whole.parts) {
        std::vector<std::int64_t> samples = part.samples;
        if (variant.shuffle != 0) {
          CounterRng rng(variant.shuffle, RngStream::kOther, 0, plan.step);
          const auto order = rng.permutation(static_cast<std::int64_t>(samples.size()));
          for (std::size_t i = 0; i < samples.size(); ++i) {
            samples[i] = part.samples[static_cast<std::size_t>(order[i])];
          }
        }
        const auto count = static_cast<std::int64_t>(samples.size());
        const auto first = samples.begin() + count * split / variant.splits;
        const auto last = samples.begin() + count * (split + 1) / variant.splits;
        if (first != last) {
          piece.parts.push_back({{first, last}, part.route, part.mean_over});
        }
      }
      if (!piece.parts.empty()) {
        plan.micro_batches.push_back(std::move(piece));
      }
    }
    if (plan.micro_batches.empty()) {
      plan.micro_batches.push_back(whole);  // no rank has a sample
    }
    plan.micro_batches.back().sync = true;
  }
  return result;
}

Run train_one(const Program& program, const Dataset& data, const std::shared_ptr<GraphModel>& model,
              NoSync& sync) {
  Optimizer optimizer(program.value.train.optimizer, all_parameters(*model).tensors);
  Position position;
  std::vector<RankRun> records(1);
  const TrainerParts parts{program, data,      {{&program.ranks.front(), model}},
                           sync,    optimizer, nullptr,
                           nullptr, nullptr,   position};
  train(parts, records);
  return to_run(std::move(records));
}

}  // namespace

Run run_replay(const Program& program, const Run& subject, ReplayDetails* details,
               std::int64_t fresh_optimizer_at) {
  const Case& value = program.value;
  std::vector<std::shared_ptr<GraphModel>> models;
  std::vector<Replica> replicas;
  std::vector<RankRun> records;
  for (const RankProgram& rank : program.ranks) {
    models.push_back(build_model(program));
    if (models.size() > 1) {
      share_parameters(*models.front(), *models.back());
    }
    replicas.push_back({&rank, models.back()});
    records.emplace_back().rank = rank.rank;
  }
  ReplaySync sync(value, models, subject, details);
  Position position;
  const auto train_range = [&](StepRange range) {
    Optimizer optimizer(value.train.optimizer, all_parameters(*models.front()).tensors);
    const TrainerParts parts{program, *program.data, replicas, sync,    optimizer,
                             nullptr, nullptr,       nullptr,  position};
    train(parts, records, range);
  };
  if (fresh_optimizer_at < 0) {
    train_range({});
  } else {
    train_range({0, fresh_optimizer_at});
    train_range({fresh_optimizer_at});
  }
  return to_run(std::move(records));
}

Run run_serial(const Program& program, const SerialVariant& variant) {
  const Case& value = program.value;
  const bool plain = variant.shuffle == 0 && variant.splits == 1;
  const Program used = plain ? program : reorder(program, variant);
  const auto model = build_model(used);
  if (variant.dtype != value.model.dtype) {
    convert(*model, variant.dtype);
  }
  NoSync sync(model, variant.shuffle, variant.dtype == "float64");
  return train_one(used, program.data->to(variant.dtype), model, sync);
}

Run run_alone(const Program& program, const std::shared_ptr<GraphModel>& model) {
  NoSync sync(model, /*dither=*/0, /*is_wide=*/false);
  return train_one(program, *program.data, model, sync);
}

}  // namespace lockstep::harness
