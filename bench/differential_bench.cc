// SPDX-License-Identifier: Apache-2.0
// What a full differential case costs over plain LibTorch doing the same forwards, backwards and
// optimizer steps. Interleaved runs in one process; prints medians and their ratio.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "harness/judge/judge.h"
#include "harness/reference/derived_bound.h"
#include "harness/scenario.h"

namespace {

using namespace lockstep::harness;  // NOLINT: a program of its own

constexpr int kRanks = 4, kSteps = 20, kBatch = 16;

const char* const kScenario = R"(
schema = 1
title = "bench"
[world]
ranks = 4
[model]
widths = [32, 64, 64, 10]
[data]
samples = 256
[train]
steps = 20
batch_per_rank = 16
optimizer = { kind = "sgd", lr = 0.01 }
[expect]
)";

struct Mlp : torch::nn::Module {
  Mlp() {
    a = register_module("a", torch::nn::Linear(32, 64));
    b = register_module("b", torch::nn::Linear(64, 64));
    c = register_module("c", torch::nn::Linear(64, 10));
  }
  torch::Tensor forward(const torch::Tensor& x) { return c(torch::relu(b(torch::relu(a(x))))); }
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
};

// `trainings` times kSteps steps on batches of `batch` samples, as a user without DDP would. Of the
// replay's ranks, which share one copy of the parameters, only one steps an optimizer.
void train_plainly(int trainings, int batch, bool steps_optimizer, torch::Dtype dtype) {
  const auto options = torch::TensorOptions().dtype(dtype);
  const torch::Tensor x = torch::randn({batch, 32}, options);
  const torch::Tensor y = torch::randn({batch, 10}, options);
  for (int i = 0; i < trainings; ++i) {
    Mlp model;
    model.to(dtype);
    torch::optim::SGD optimizer(model.parameters(), 0.01);
    for (int step = 0; step < kSteps; ++step) {
      for (auto& parameter : model.parameters()) {
        parameter.mutable_grad() = torch::Tensor();
      }
      torch::mse_loss(model.forward(x), y).backward();
      if (steps_optimizer) {
        optimizer.step();
      }
    }
  }
}

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(const char* what, const std::string& expect, const std::function<void()>& plain,
             int rounds) {
  const auto cases = parse_scenario_text(kScenario + expect, "bench");
  const auto simulator = make_sim_executor();
  JudgeOptions options;
  options.executor = simulator.get();
  options.simulator = simulator.get();
  std::vector<double> judged, bare;
  for (int round = 0; round < rounds + 2; ++round) {
    bool as_expected = false;
    const double with =
        seconds_of([&] { as_expected = judge_case(cases.front(), options).as_expected; });
    const double without = seconds_of(plain);
    if (!as_expected) {
      std::printf("%s: the case is not as expected\n", what);
      std::exit(1);
    }
    if (round >= 2) {  // the first two warm up
      judged.push_back(with);
      bare.push_back(without);
    }
  }
  std::printf("%-34s %8.2f ms  plain %8.2f ms  ratio %.3f\n", what, median(judged) * 1e3,
              median(bare) * 1e3, median(judged) / median(bare));
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 31;
  std::printf("MLP 32-64-64-10, batch %d, %d ranks, %d steps; medians of %d interleaved runs\n",
              kBatch, kRanks, kSteps, rounds);
  compare(
      "subject and replay", "outcome = \"equal\"\noracles = [\"ranks\", \"replay\"]\n",
      [] {
        train_plainly(kRanks, kBatch, true, torch::kFloat);
        train_plainly(1, kBatch, true, torch::kFloat);
        train_plainly(kRanks - 1, kBatch, false, torch::kFloat);
      },
      rounds);
  compare(
      "subject, replay, serial, bound", "outcome = \"within_bound\"\n",
      [] {
        train_plainly(kRanks, kBatch, true, torch::kFloat);
        train_plainly(1, kBatch, true, torch::kFloat);
        train_plainly(kRanks - 1, kBatch, false, torch::kFloat);
        // The serial reference and its reordered variants, of which one runs split in four.
        train_plainly(1, kBatch * kRanks, true, torch::kDouble);
        train_plainly(DerivedBound::kVariants - 1, kBatch * kRanks, true, torch::kFloat);
        train_plainly(1, kBatch, true, torch::kFloat);
        train_plainly(kRanks - 1, kBatch, false, torch::kFloat);
      },
      rounds);
  return 0;
}
