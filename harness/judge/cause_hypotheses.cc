// SPDX-License-Identifier: Apache-2.0
// Recomputes what each plausible mistake would have produced and compares.
#include "harness/judge/cause_hypotheses.h"

#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "harness/dataset.h"
#include "harness/graph_model.h"
#include "harness/judge/gradient_causes.h"
#include "harness/judge/hypotheses.h"
#include "harness/reference/reference.h"
#include "harness/snapshot.h"
#include "harness/sync/gradient_sync.h"

namespace lockstep::harness {
namespace {

std::vector<double> losses_of(const Run& run, std::size_t rank, std::int64_t step) {
  const StepRecord* record = find_step(run.ranks[rank], step);
  return record != nullptr ? record->losses : std::vector<double>();
}

// What all losses of a step were multiplied by. One loss fits any factor, so that it counts only if
// the factor or its reciprocal is a whole number.
std::optional<double> common_factor(const std::vector<double>& actual,
                                    const std::vector<double>& expected) {
  constexpr double kTolerance = 1e-6;  // losses are single-precision sums
  const double factor = actual.front() / expected.front();
  if (!std::isfinite(factor) || factor <= 0.0) {
    return std::nullopt;
  }
  for (std::size_t i = 1; i < actual.size(); ++i) {
    if (std::abs(actual[i] - factor * expected[i]) > kTolerance * std::abs(actual[i])) {
      return std::nullopt;
    }
  }
  const double above_one = std::max(factor, 1.0 / factor);
  const double whole = std::round(above_one);
  const bool is_whole = whole > 1.0 && std::abs(above_one - whole) < kTolerance * whole;
  return actual.size() > 1 || is_whole ? std::optional(factor) : std::nullopt;
}

// Which ranks' losses are no numbers, where the reference's are.
CauseHypothesis not_finite(const Divergence& divergence, const Run& subject, const Run& replayed) {
  const auto is_finite = [](double loss) { return std::isfinite(loss); };
  std::vector<std::size_t> sources;
  for (std::size_t rank = 0; rank < subject.ranks.size(); ++rank) {
    const std::vector<double> actual = losses_of(subject, rank, divergence.step);
    const std::vector<double> expected = losses_of(replayed, rank, divergence.step);
    if (!std::all_of(actual.begin(), actual.end(), is_finite) &&
        std::all_of(expected.begin(), expected.end(), is_finite)) {
      sources.push_back(rank);
    }
  }
  return {"not_finite",
          sources.empty()
              ? "a number went out of range behind the losses, which all are numbers"
              : fmt::format("the loss of rank {} is not a number: its batch is bad, and what is "
                            "reduced with it becomes bad everywhere",
                            fmt::join(sources, ", ")),
          true};
}

// What rank's script would have done with one of these mistakes, in this step alone.
void test_script_mistakes(std::vector<CauseHypothesis>& causes, std::int64_t step, std::size_t rank,
                          const Program& replay, const Run& subject,
                          const std::vector<double>& actual) {
  struct Mistake {
    const char *fault, *cause, *what;
  };
  static constexpr Mistake kMistakes[] = {
      {"shuffle_seed", "own_shuffle",
       "shuffled with a seed of its own: some samples are seen by several ranks, "
       "others by none"},
      {"epoch_not_set", "epoch_not_set", "took the order of the first epoch again"},
      {"dropout_seed", "shared_noise", "drew rank 0's dropout masks"},
  };
  for (const Mistake& mistake : kMistakes) {
    Case value = replay.value;
    value.faults = {FaultSpec()};
    value.faults.front().kind = mistake.fault;
    value.faults.front().ranks = {static_cast<std::int64_t>(rank)};
    const Program planted = compile_subject(value, replay.data);
    Program tried = replay;
    const auto at = static_cast<std::size_t>(step);
    if (at >= tried.ranks[rank].steps.size() || at >= planted.ranks[rank].steps.size()) {
      continue;
    }
    tried.ranks[rank].noise_rank = planted.ranks[rank].noise_rank;
    tried.ranks[rank].steps[at].micro_batches = planted.ranks[rank].steps[at].micro_batches;
    if (losses_of(run_replay(tried, subject), rank, step) == actual) {
      causes.push_back({mistake.cause, fmt::format("rank {} {}", rank, mistake.what), true});
    }
  }
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
  const auto is_finite = [](double loss) { return std::isfinite(loss); };
  if (!std::all_of(actual.begin(), actual.end(), is_finite) &&
      std::all_of(expected.begin(), expected.end(), is_finite)) {
    return {not_finite(divergence, subject, replayed)};
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
  test_script_mistakes(causes, divergence.step, rank, replay, subject, actual);
  Program separate = replay;
  separate.separate_forwards = true;
  if (uses_sync_batch_norm(replay.value.model) &&
      losses_of(run_replay(separate, subject), rank, divergence.step) == actual) {
    causes.push_back(
        {"local_statistics",
         fmt::format("rank {} normalised over its own batch: batch_norm in the place of "
                     "sync_batch_norm",
                     rank),
         true});
  }
  Program summed = replay;  // in this step alone
  summed.value.faults = {FaultSpec()};
  summed.value.faults.front().kind = "sum_not_mean";
  for (RankProgram& each : summed.ranks) {
    if (at < each.steps.size()) {
      each.steps[at].faults = {0};
    }
  }
  if (replay.value.train.reduction == "mean" &&
      losses_of(run_replay(summed, subject), rank, divergence.step) == actual) {
    causes.push_back(
        {"times_batch", "the loss was summed over the local batch, not averaged", true});
  }
  if (const auto factor = common_factor(actual, expected); causes.empty() && factor) {
    causes.push_back(
        {"scaled", fmt::format("the loss is {:.9g} times what it should be", *factor), false});
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
  const auto is_finite = [](const at::Tensor& tensor) {
    return !tensor.defined() || tensor.isfinite().all().item<bool>();
  };
  if (!is_finite(hypotheses.actual()) && is_finite(hypotheses.expected())) {
    hypotheses.offer(not_finite(divergence, subject, replayed));
  } else if (divergence.phase == "gradient") {
    const GraphModel model(replay.value.model, replay.value.data.exact, replay.value.seed, 0);
    const NamedParameters trainable = trainable_parameters(model);
    for (std::size_t i = 0; i < trainable.names.size(); ++i) {
      if (trainable.names[i] == divergence.tensor) {
        const at::AutoGradMode with_grad(true);
        test_gradient_causes(hypotheses, divergence, replay, subject, i);
      }
    }
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
