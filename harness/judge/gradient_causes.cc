// SPDX-License-Identifier: Apache-2.0
// Recomputes gradients with one mistake each.
#include "harness/judge/gradient_causes.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>

#include "harness/reference/reference.h"
#include "harness/snapshot.h"

namespace lockstep::harness {
namespace {

// Sum over ranks of the contributions, divided; `leave_out` < 0 takes them all.
at::Tensor mean_of(const ReplayDetails& details, std::size_t index, std::int64_t leave_out) {
  const auto& contributions = details.contributions;
  at::Tensor sum;
  for (std::size_t rank = 0; rank < contributions.size(); ++rank) {
    const at::Tensor& part = contributions[rank][index];
    if (static_cast<std::int64_t>(rank) != leave_out && part.defined()) {
      sum = sum.defined() ? sum + part : part;
    }
  }
  return sum.defined() ? sum / static_cast<double>(details.divisor) : sum;
}

/// The largest number of which mean_of makes its sums.
double largest_summand(const ReplayDetails& details, std::size_t index, std::int64_t leave_out) {
  double largest = 0.0;
  for (std::size_t rank = 0; rank < details.contributions.size(); ++rank) {
    const at::Tensor& part = details.contributions[rank][index];
    if (static_cast<std::int64_t>(rank) == leave_out || !part.defined() || part.numel() == 0) {
      continue;
    }
    const double of_part = plain(part).abs().max().item<double>();
    largest = std::isfinite(of_part) ? std::max(largest, of_part) : largest;
  }
  return largest;
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
  return sum.defined() ? sum / static_cast<double>(details.divisor) : sum;
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

// O2, the one way round and the other.
void test_join_divisor(Hypotheses& hypotheses, const Case& value, const ReplayDetails& details,
                       std::size_t index) {
  const std::vector<std::int64_t> steps = steps_by_rank(value);
  const std::int64_t num_active = std::count_if(
      steps.begin(), steps.end(), [&](std::int64_t count) { return count > details.step; });
  if (value.ddp.join == "off" || num_active == 0) {
    return;
  }
  const bool by_active = details.divisor == num_active;
  ReplayDetails other = details;
  other.divisor = by_active ? value.world.ranks : num_active;
  hypotheses.test(
      "join_divisor",
      fmt::format("the sum was divided by {}, the {}, instead of by {}", other.divisor,
                  by_active ? "initial number of ranks" : "number of ranks that still have inputs",
                  details.divisor),
      mean_of(other, index, -1));
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
  const auto at = static_cast<std::size_t>(divergence.step);
  for (RankProgram& rank : first.ranks) {
    if (at >= rank.steps.size()) {
      continue;  // has no inputs
    }
    for (MicroBatch& micro_batch : rank.steps[at].micro_batches) {
      micro_batch.parts.resize(1);
    }
  }
  ReplayDetails of_first;
  of_first.step = divergence.step;
  run_replay(first, subject, &of_first);
  if (details.contributions.empty() || of_first.contributions.empty()) {
    return;
  }
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

}  // namespace

void test_gradient_causes(Hypotheses& hypotheses, const Divergence& divergence,
                          const Program& replay, const Run& subject, std::size_t index) {
  ReplayDetails details;
  details.step = divergence.step;
  run_replay(replay, subject, &details);
  test_scale(hypotheses, replay.value);
  test_join_divisor(hypotheses, replay.value, details, index);
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
                    mean_of(details, index, static_cast<std::int64_t>(rank)),
                    largest_summand(details, index, static_cast<std::int64_t>(rank)));
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
  test_corruption(hypotheses, divergence);
  test_any_scale(hypotheses);
}

}  // namespace lockstep::harness
