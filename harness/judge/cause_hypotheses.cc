// SPDX-License-Identifier: Apache-2.0
// Recomputes what each plausible mistake would have produced and compares.
#include "harness/judge/cause_hypotheses.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "harness/dataset.h"
#include "harness/graph_model.h"
#include "harness/reference/reference.h"
#include "harness/snapshot.h"
#include "harness/sync/gradient_sync.h"

namespace lockstep::harness {
namespace {

// Rounding of a handful of operations on numbers of this size.
constexpr double kRoundings = 16.0;

at::Tensor read(const Snapshot& snapshot, const std::string& name) {
  if (snapshot.slots != nullptr) {
    for (const TensorSlot& slot : *snapshot.slots) {
      if (slot.name == name) {
        return plain(tensor_of(snapshot, slot));
      }
    }
  }
  return {};
}

class Hypotheses {
 public:
  Hypotheses(at::Tensor expected, at::Tensor actual)
      : expected_(std::move(expected)), actual_(std::move(actual)) {}

  // Keeps the hypothesis if `predicted` is what was found and not what was expected.
  void test(const std::string& name, const std::string& description, const at::Tensor& predicted) {
    if (!predicted.defined() || !actual_.defined() || predicted.sizes() != actual_.sizes() ||
        !predicted.isfinite().all().item<bool>() ||
        (expected_.defined() && fits(predicted, expected_))) {
      return;
    }
    const at::Tensor same_dtype = predicted.to(actual_.scalar_type());
    if (same_dtype.equal(actual_)) {
      list_.push_back({name, description, true});
    } else if (fits(same_dtype, actual_)) {
      list_.push_back({name, description, false});
    }
  }

  void offer(CauseHypothesis hypothesis) { list_.push_back(std::move(hypothesis)); }

  std::vector<CauseHypothesis> take() {
    std::stable_sort(list_.begin(), list_.end(),
                     [](const auto& a, const auto& b) { return a.exact && !b.exact; });
    return std::move(list_);
  }

  const at::Tensor& expected() const { return expected_; }
  const at::Tensor& actual() const { return actual_; }
  bool empty() const { return list_.empty(); }

 private:
  bool fits(const at::Tensor& predicted, const at::Tensor& found) const {
    if (predicted.numel() == 0) {
      return false;
    }
    const double epsilon = found.scalar_type() == at::kDouble
                               ? std::numeric_limits<double>::epsilon()
                               : std::numeric_limits<float>::epsilon();
    const double largest = predicted.abs().max().item<double>();
    const double error =
        (predicted.to(at::kDouble) - found.to(at::kDouble)).abs().max().item<double>();
    return error <= kRoundings * epsilon * largest;
  }

  at::Tensor expected_, actual_;
  std::vector<CauseHypothesis> list_;
};

// Sum over ranks of the contributions, divided by W; `leave_out` < 0 takes them all.
at::Tensor mean_of(const std::vector<std::vector<at::Tensor>>& contributions, std::size_t index,
                   std::int64_t leave_out) {
  at::Tensor sum;
  for (std::size_t rank = 0; rank < contributions.size(); ++rank) {
    const at::Tensor& part = contributions[rank][index];
    if (static_cast<std::int64_t>(rank) != leave_out && part.defined()) {
      sum = sum.defined() ? sum + part : part;
    }
  }
  return sum.defined() ? sum / static_cast<double>(contributions.size()) : sum;
}

at::Tensor without_micro_batch(const ReplayDetails& details, std::size_t index, std::size_t micro) {
  at::Tensor sum;
  for (std::size_t rank = 0; rank < details.micro_contributions.size(); ++rank) {
    const auto& of_rank = details.micro_contributions[rank];
    for (std::size_t m = 0; m < of_rank.size(); ++m) {
      const at::Tensor& part = of_rank[m][index];
      if (m != micro && part.defined()) {
        sum = sum.defined() ? sum + part : part;
      }
    }
  }
  return sum.defined() ? sum / static_cast<double>(details.micro_contributions.size()) : sum;
}

void test_scale(Hypotheses& hypotheses, const Case& value) {
  const at::Tensor& expected = hypotheses.expected();
  if (!expected.defined()) {
    return;
  }
  const auto world_size = static_cast<double>(value.world.ranks);
  const auto batch = static_cast<double>(value.train.batch_per_rank / value.train.micro_batches);
  hypotheses.test("times_world_size",
                  "the gradient is the sum over ranks: it was not divided by the world size",
                  expected * world_size);
  hypotheses.test("over_world_size", "the gradient was divided by the world size once too often",
                  expected / world_size);
  hypotheses.test("times_batch", "the loss was summed over the local batch, not averaged",
                  expected * batch);
}

void test_any_scale(Hypotheses& hypotheses) {
  const at::Tensor& expected = hypotheses.expected();
  const at::Tensor& actual = hypotheses.actual();
  if (!hypotheses.empty() || !expected.defined() || !actual.defined() || expected.numel() < 2 ||
      expected.sizes() != actual.sizes()) {
    return;
  }
  const at::Tensor flat = expected.reshape({-1}).to(at::kDouble);
  const auto largest = flat.abs().argmax().item<std::int64_t>();
  const double ratio = actual.reshape({-1})[largest].item<double>() / flat[largest].item<double>();
  if (std::isfinite(ratio) && ratio != 0.0) {
    hypotheses.test("scaled", fmt::format("every element is {:.9g} times what it should be", ratio),
                    expected * ratio);
  }
}

// Backwards from each loss in turn: the first one's gradients are reduced, the others' added after
// that (F9).
void test_later_backwards(Hypotheses& hypotheses, const Program& replay, const Run& subject,
                          const Divergence& divergence, const ReplayDetails& details,
                          std::size_t index) {
  Program first = replay;
  for (RankProgram& rank : first.ranks) {
    for (MicroBatch& micro_batch :
         rank.steps[static_cast<std::size_t>(divergence.step)].micro_batches) {
      micro_batch.parts.resize(1);
    }
  }
  ReplayDetails of_first;
  of_first.step = divergence.step;
  run_replay(first, subject, &of_first);
  const auto rank = static_cast<std::size_t>(divergence.ranks.front());
  const at::Tensor& whole = details.contributions[rank][index];
  const at::Tensor& part = of_first.contributions[rank][index];
  if (whole.defined() && part.defined() && of_first.reduced[index].defined()) {
    hypotheses.test("later_backward_local",
                    fmt::format("rank {} added what its later backwards gave to the average of the "
                                "first: they came after the reduction",
                                rank),
                    of_first.reduced[index] + (whole - part));
  }
}

void gradient_causes(Hypotheses& hypotheses, const Divergence& divergence, const Program& replay,
                     const Run& subject, std::size_t index) {
  ReplayDetails details;
  details.step = divergence.step;
  run_replay(replay, subject, &details);
  test_scale(hypotheses, replay.value);
  const auto world_size = static_cast<double>(replay.value.world.ranks);
  for (std::size_t rank = 0; rank < details.contributions.size(); ++rank) {
    const at::Tensor& local = details.contributions[rank][index];
    if (!local.defined()) {
      continue;
    }
    hypotheses.test("local_only",
                    fmt::format("it is rank {}'s own gradient: nothing was reduced", rank), local);
    hypotheses.test("local_over_world_size",
                    fmt::format("it is rank {}'s own gradient over the world size: divided, but "
                                "not summed",
                                rank),
                    local / world_size);
    hypotheses.test("rank_missing", fmt::format("rank {} contributed nothing", rank),
                    mean_of(details.contributions, index, static_cast<std::int64_t>(rank)));
  }
  const std::size_t num_micro =
      details.micro_contributions.empty() ? 0 : details.micro_contributions.front().size();
  for (std::size_t micro = 0; num_micro > 1 && micro < num_micro; ++micro) {
    hypotheses.test("micro_batch_missing",
                    fmt::format("micro-batch {} is missing on all ranks", micro),
                    without_micro_batch(details, index, micro));
    // What each rank added after the reduction never left it.
    for (std::size_t rank = 0; rank < details.micro_contributions.size(); ++rank) {
      const at::Tensor rest = without_micro_batch(details, index, micro);
      const at::Tensor& own = details.micro_contributions[rank][micro][index];
      if (rest.defined() && own.defined()) {
        hypotheses.test(
            "micro_batch_not_reduced",
            fmt::format("micro-batch {} was added on rank {} after the reduction", micro, rank),
            rest + own);
      }
    }
  }
  if (replay.value.train.backward_from == "each") {
    test_later_backwards(hypotheses, replay, subject, divergence, details, index);
  }
  if (index < details.previous_reduced.size()) {
    hypotheses.test("stale_gradient", "it is the gradient of the step before",
                    details.previous_reduced[index]);
  }
  for (std::size_t other = 0; other < details.reduced.size(); ++other) {
    if (other != index && details.reduced[other].defined() &&
        details.reduced[other].numel() == hypotheses.actual().numel()) {
      hypotheses.test("other_slot", fmt::format("it is the gradient of parameter {}", other),
                      details.reduced[other].reshape(hypotheses.actual().sizes()));
    }
  }
}

void test_corruption(Hypotheses& hypotheses, const Divergence& divergence) {
  if (divergence.oracle != "serial" && divergence.num_elements_differ == 1 &&
      divergence.element >= 0 && hypotheses.empty() && hypotheses.expected().defined() &&
      hypotheses.actual().defined() && hypotheses.actual().numel() > 1) {
    at::Tensor predicted = hypotheses.expected().clone();
    predicted.view({-1})[divergence.element] = hypotheses.actual().view({-1})[divergence.element];
    hypotheses.offer({"corrupted", "a single element differs: the data was damaged on the way",
                      predicted.equal(hypotheses.actual())});
  }
}

std::vector<double> losses_of(const Run& run, std::size_t rank, std::int64_t step) {
  const StepRecord* record = find_step(run.ranks[rank], step);
  return record != nullptr ? record->losses : std::vector<double>();
}

std::vector<CauseHypothesis> forward_causes(const Divergence& divergence, const Program& replay,
                                            const Run& subject, const Run& replayed) {
  std::vector<CauseHypothesis> causes;
  const auto rank = static_cast<std::size_t>(divergence.ranks.front());
  const std::vector<double> actual = losses_of(subject, rank, divergence.step);
  const std::vector<double> expected = losses_of(replayed, rank, divergence.step);
  if (actual.empty() || actual.size() != expected.size()) {
    return causes;
  }
  for (std::size_t other = 0; other < replayed.ranks.size(); ++other) {
    if (other != rank && losses_of(replayed, other, divergence.step) == actual) {
      causes.push_back({"same_batches",
                        fmt::format("rank {} computed the loss of rank {}'s batch", rank, other),
                        true});
    }
  }
  const auto at = static_cast<std::size_t>(std::max<std::int64_t>(divergence.step, 0));
  Program late = replay;
  auto& steps = late.ranks[rank].steps;
  if (at > 0 && at < steps.size()) {
    steps[at].micro_batches = steps[at - 1].micro_batches;
    if (losses_of(run_replay(late, subject), rank, divergence.step) == actual) {
      causes.push_back({"stale_batch",
                        fmt::format("rank {} trained on the batch of the step before", rank),
                        true});
    }
  }
  Program summed = replay;
  summed.value.train.reduction = "sum";
  if (replay.value.train.reduction == "mean" &&
      losses_of(run_replay(summed, subject), rank, divergence.step) == actual) {
    causes.push_back(
        {"times_batch", "the loss was summed over the local batch, not averaged", true});
  }
  const double ratio = actual.front() / expected.front();
  if (causes.empty() && std::isfinite(ratio)) {
    causes.push_back(
        {"scaled", fmt::format("the loss is {:.9g} times what it should be", ratio), false});
  }
  return causes;
}

void parameter_causes(Hypotheses& hypotheses, const Divergence& divergence, const Program& replay,
                      const Run& subject, const Run& replayed) {
  const bool reloads =
      std::any_of(replay.value.at.begin(), replay.value.at.end(),
                  [&](const AtSpec& at) { return at.reload && covers(at.steps, divergence.step); });
  if (reloads) {
    const Run fresh = run_replay(replay, subject, nullptr, divergence.step);
    const StepRecord* record = find_step(fresh.ranks.front(), divergence.step);
    if (record != nullptr) {
      hypotheses.test("optimizer_state_lost",
                      fmt::format("the optimizer began anew at step {}: its state was not loaded",
                                  divergence.step),
                      read(record->parameters, divergence.tensor));
    }
  }
  const RankRun& reference = replayed.ranks.front();
  const StepRecord* before = find_step(reference, divergence.step - 1);
  hypotheses.test("not_updated", "the optimizer did not change the parameter in this step",
                  read(before != nullptr ? before->parameters : reference.initial_parameters,
                       divergence.tensor));
}

void buffer_causes(Hypotheses& hypotheses, const Divergence& divergence, const Program& replay,
                   const Run& subject) {
  Program unsynced = replay;
  unsynced.value.ddp.broadcast_buffers = false;
  const auto rank = static_cast<std::size_t>(divergence.ranks.front());
  const Run run = run_replay(unsynced, subject);
  const StepRecord* record = find_step(run.ranks[rank], divergence.step);
  if (record != nullptr) {
    hypotheses.test("local_buffers",
                    fmt::format("rank {} went on with its own buffers instead of rank 0's", rank),
                    read(record->buffers, divergence.tensor));
  }
}

void initial_causes(Hypotheses& hypotheses, const Divergence& divergence, const Case& value) {
  for (const std::int64_t rank : divergence.ranks) {
    const GraphModel model(value.model, value.data.exact, value.seed, rank);
    const NamedParameters parameters = all_parameters(model);
    for (std::size_t i = 0; i < parameters.names.size(); ++i) {
      if (parameters.names[i] == divergence.tensor) {
        hypotheses.test("own_initialisation",
                        fmt::format("rank {} kept the values it drew itself", rank),
                        plain(parameters.tensors[i].detach()));
      }
    }
  }
}

const Snapshot* snapshot_of(const RankRun& rank, const Divergence& divergence) {
  if (divergence.phase == "init") {
    return &rank.initial_parameters;
  }
  const StepRecord* record = find_step(rank, divergence.step);
  if (record == nullptr) {
    return nullptr;
  }
  if (divergence.phase == "gradient") {
    return &record->gradients;
  }
  if (divergence.phase == "buffer") {
    return &record->buffers;
  }
  return divergence.phase == "parameter" ? &record->parameters : &record->optimizer;
}

}  // namespace

std::vector<CauseHypothesis> causes_of(const Divergence& divergence, const Program& replay,
                                       const Run& subject, const Run& replayed, const Run* serial) {
  if (divergence.ranks.empty()) {
    return {};
  }
  if (divergence.phase == "forward") {
    return forward_causes(divergence, replay, subject, replayed);
  }
  const auto rank = static_cast<std::size_t>(divergence.ranks.front());
  const std::size_t reference_rank = divergence.phase == "buffer" ? rank : 0;
  const Snapshot* actual = snapshot_of(subject.ranks[rank], divergence);
  const Run& reference = divergence.oracle == "serial" && serial != nullptr ? *serial : replayed;
  const Snapshot* expected = snapshot_of(reference.ranks[reference_rank], divergence);
  if (actual == nullptr || expected == nullptr) {
    return {};
  }
  const at::NoGradGuard no_grad;
  Hypotheses hypotheses(read(*expected, divergence.tensor), read(*actual, divergence.tensor));
  if (divergence.phase == "gradient") {
    const GraphModel model(replay.value.model, replay.value.data.exact, replay.value.seed, 0);
    const NamedParameters trainable = trainable_parameters(model);
    for (std::size_t i = 0; i < trainable.names.size(); ++i) {
      if (trainable.names[i] == divergence.tensor) {
        const at::AutoGradMode with_grad(true);
        gradient_causes(hypotheses, divergence, replay, subject, i);
      }
    }
    test_corruption(hypotheses, divergence);
    test_any_scale(hypotheses);
  } else if (divergence.phase == "parameter") {
    const at::AutoGradMode with_grad(true);
    parameter_causes(hypotheses, divergence, replay, subject, replayed);
  } else if (divergence.phase == "buffer") {
    const at::AutoGradMode with_grad(true);
    buffer_causes(hypotheses, divergence, replay, subject);
  } else if (divergence.phase == "init") {
    initial_causes(hypotheses, divergence, replay.value);
  }
  return hypotheses.take();
}

}  // namespace lockstep::harness
