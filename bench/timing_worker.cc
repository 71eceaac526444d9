// SPDX-License-Identifier: Apache-2.0
// One rank of the training that scripts/validate_timing measures: our DDP over our Gloo, layers
// whose compute is a sleep, so that a few cores serve for several ranks.
//
// timing_worker JOB.json RANK
//
// JOB.json:
//   ranks, directory (mode 0700), token, addresses: where the ranks meet, and the address of each;
//   all_reduce_bytes: sizes of lone collectives to time; all_reduce_repeats;
//   layers: [{bytes, forward_us, backward_us}], parameters being float32; optimizer_us;
//   caps: [{first_bytes, other_bytes}], a wrapper each, taken in turns;
//   rounds, steps_per_round: how often each has its turn and how many steps are timed then.
// Rank 0 prints {"all_reduces": [{bytes, seconds: [...]}], "steps": [{first_bytes, other_bytes,
// buckets_bytes: [...], seconds: [...]}]}, one number a repetition or step.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <torch/autograd.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/check.h"
#include "core/distributed_data_parallel.h"
#include "core/gloo_communicator.h"
#include "core/gloo_device.h"

namespace {

using namespace lockstep;  // NOLINT: a program of its own
using nlohmann::json;

constexpr std::int64_t kNsPerSecond = 1'000'000'000;

std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerSecond + now.tv_nsec;
}

/// Compute that takes a given time and no processor. Times add up from the start of the pass, so
/// what the rank really does in a layer, and waking up late, comes out of the next layer's sleep.
class PaddedCompute {
 public:
  void start() { until_ns_ = now_ns(); }
  void spend(std::int64_t ns) {
    until_ns_ += ns;
    const timespec until{until_ns_ / kNsPerSecond, until_ns_ % kNsPerSecond};
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
  }

 private:
  std::int64_t until_ns_ = 0;
};

struct LayerCost {
  std::int64_t numel = 0, forward_ns = 0, backward_ns = 0;
};

struct LayerFunction : torch::autograd::Function<LayerFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input,
                            const at::Tensor& weight, PaddedCompute* compute,
                            const LayerCost* cost) {
    compute->spend(cost->forward_ns);
    context->save_for_backward({weight});
    context->saved_data["compute"] = reinterpret_cast<std::int64_t>(compute);
    context->saved_data["cost"] = reinterpret_cast<std::int64_t>(cost);
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list outputs) {
    auto* const compute = reinterpret_cast<PaddedCompute*>(context->saved_data["compute"].toInt());
    const auto* const cost = reinterpret_cast<LayerCost*>(context->saved_data["cost"].toInt());
    at::Tensor gradient = at::ones_like(context->get_saved_variables()[0]);
    compute->spend(cost->backward_ns);
    return {outputs[0], gradient, at::Tensor(), at::Tensor()};
  }
};

class SleepyModel : public torch::nn::Module {
 public:
  explicit SleepyModel(const json& layers) {
    for (const json& layer : layers) {
      LayerCost cost;
      cost.numel = layer.at("bytes").get<std::int64_t>() / 4;
      cost.forward_ns = layer.at("forward_us").get<std::int64_t>() * 1000;
      cost.backward_ns = layer.at("backward_us").get<std::int64_t>() * 1000;
      costs_.push_back(cost);
      weights_.push_back(
          register_parameter(fmt::format("layer{}", weights_.size()), at::zeros({cost.numel})));
    }
  }
  at::Tensor forward(at::Tensor value) {
    compute.start();
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      value = LayerFunction::apply(value, weights_[i], &compute, &costs_[i]);
    }
    return value;
  }
  void drop_gradients() {
    for (at::Tensor& weight : weights_) {
      weight.mutable_grad() = at::Tensor();
    }
  }

  PaddedCompute compute;

 private:
  std::vector<LayerCost> costs_;
  std::vector<at::Tensor> weights_;
};

/// A model behind a wrapper with caps of its own.
class Subject {
 public:
  Subject(const json& job, const json& caps, Communicator& communicator)
      : caps_(caps), optimizer_ns_(job.at("optimizer_us").get<std::int64_t>() * 1000) {
    DdpOptions options;
    options.first_bucket_cap_bytes = caps.at("first_bytes");
    options.bucket_cap_bytes = caps.at("other_bytes");
    model_ = std::make_shared<SleepyModel>(job.at("layers"));
    ddp_ = std::make_unique<DistributedDataParallel<SleepyModel>>(model_, communicator, options);
  }

  void step() {
    model_->drop_gradients();
    const at::Tensor loss = ddp_->forward(at::ones({1}, at::requires_grad()));
    model_->compute.start();
    loss.backward();
    model_->compute.start();
    model_->compute.spend(optimizer_ns_);
  }

  /// Whole steps one after the other, as in training: the first, which still has the pause before
  /// it in it, is left out.
  void take_turn(int steps) {
    step();
    std::int64_t before = now_ns();
    for (int i = 0; i < steps; ++i) {
      step();
      const std::int64_t after = now_ns();
      seconds_.push_back(static_cast<double>(after - before) / kNsPerSecond);
      before = after;
    }
  }
  void forget() { seconds_.clear(); }

  json report() const {
    json result = caps_;
    for (const auto& bucket : ddp_->engine().bucket_layout()->buckets) {
      std::int64_t bytes = 0;
      for (const std::int64_t parameter : bucket) {
        bytes += ddp_->engine().parameters()[static_cast<std::size_t>(parameter)].nbytes();
      }
      result["buckets_bytes"].push_back(bytes);
    }
    result["seconds"] = seconds_;
    return result;
  }

 private:
  json caps_;
  std::int64_t optimizer_ns_ = 0;
  std::shared_ptr<SleepyModel> model_;
  std::unique_ptr<DistributedDataParallel<SleepyModel>> ddp_;
  std::vector<double> seconds_;
};

json time_all_reduces(const json& job, Communicator& communicator) {
  json result = json::array();
  const int repeats = job.at("all_reduce_repeats");
  for (const json& bytes : job.at("all_reduce_bytes")) {
    const at::Tensor tensor = at::ones({bytes.get<std::int64_t>() / 4});
    std::vector<double> seconds;
    for (int i = -2; i < repeats; ++i) {
      communicator.barrier({})->wait();
      const std::int64_t before = now_ns();
      communicator.all_reduce(tensor, ReduceOp::kSum, {})->wait();
      if (i >= 0) {  // the first ones open TCP's window
        seconds.push_back(static_cast<double>(now_ns() - before) / kNsPerSecond);
      }
    }
    result.push_back({{"bytes", bytes}, {"seconds", seconds}});
  }
  return result;
}

json time_steps(const json& job, Communicator& communicator) {
  std::vector<std::unique_ptr<Subject>> subjects;
  for (const json& caps : job.at("caps")) {
    subjects.push_back(std::make_unique<Subject>(job, caps, communicator));
    subjects.back()->take_turn(1);  // buckets are rebuilt
    subjects.back()->forget();
  }
  const int rounds = job.at("rounds"), steps = job.at("steps_per_round");
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t turn = 0; turn < subjects.size(); ++turn) {
      // Nobody always follows the same one.
      subjects[(turn + static_cast<std::size_t>(round)) % subjects.size()]->take_turn(steps);
    }
  }
  json result = json::array();
  for (const auto& subject : subjects) {
    result.push_back(subject->report());
  }
  return result;
}

int run(const char* path, std::int64_t rank) {
  std::ifstream file(path);
  if (!file) {
    throw UsageError(fmt::format("cannot read {}", path));
  }
  const json job = json::parse(file);
  GlooDeviceOptions device;
  device.host = job.at("addresses").at(static_cast<std::size_t>(rank));
  GlooOptions options;
  options.rank = rank;
  options.world_size = job.at("ranks");
  options.directory = job.at("directory");
  options.token = job.at("token");
  options.device = GlooDevice::open(device);
  const auto communicator = make_gloo_communicator(options);
  const json result = {{"all_reduces", time_all_reduces(job, *communicator)},
                       {"steps", time_steps(job, *communicator)}};
  communicator->barrier({})->wait();
  if (rank == 0) {
    fmt::print("{}\n", result.dump());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: timing_worker JOB.json RANK\n");
    return 2;
  }
  ::prctl(PR_SET_TIMERSLACK, 1);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // whoever measures is gone
  at::set_num_threads(1);
  try {
    return run(argv[1], std::stoll(argv[2]));
  } catch (const std::exception& error) {
    fmt::print(stderr, "timing_worker: rank {}: {}\n", argv[2], error.what());
    return 1;
  }
}
