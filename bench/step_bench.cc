// SPDX-License-Identifier: Apache-2.0
// What a synchronised training step costs: our DDP, the same with checks, and PyTorch's reducer,
// all over our Gloo communicator between two ranks of this process. Interleaved; medians and
// ratios.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/distributed_data_parallel.h"
#include "core/gloo_communicator.h"
#include "core/gloo_device.h"
#include "core/rendezvous.h"
#include "harness/scenario.h"
#include "harness/sync/gradient_sync.h"

namespace {

using namespace lockstep;           // NOLINT: a program of its own
using namespace lockstep::harness;  // NOLINT

constexpr std::int64_t kRanks = 2;

struct Variant {
  std::string name, sync, checks;
};

struct Workload {
  std::string name;
  ModelSpec model;
  std::int64_t inputs = 0;
  int steps = 1;  ///< per measurement
};

/// One rank's copy of a model behind one kind of synchronisation.
class Subject {
 public:
  Subject(const Workload& workload, const Variant& variant, const GlooOptions& options)
      : communicator_(make_gloo_communicator(options)), input_(at::ones({8, workload.inputs})) {
    value_.model = workload.model;
    value_.ddp.sync = variant.sync;
    model_ = std::make_shared<GraphModel>(value_.model, false, 1, 0);
    if (variant.sync == "ddp") {
      DdpOptions ddp;
      ddp.checks.level = variant.checks == "fast" ? Checks::kFast : Checks::kOff;
      ours_ = std::make_unique<DistributedDataParallel<GraphModel>>(model_, *communicator_, ddp);
    } else {
      peer_ = make_gradient_sync({&value_, model_, communicator_.get(), nullptr, {}});
    }
    parameters_ = all_parameters(*model_).tensors;
  }

  /// Seconds a step.
  double run(int steps) {
    communicator_->barrier({})->wait();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i, ++step_) {
      for (at::Tensor& parameter : parameters_) {
        parameter.mutable_grad() = at::Tensor();
      }
      if (peer_ != nullptr) {
        peer_->begin_step(step_);
      }
      const Route route;
      std::vector<at::Tensor> outputs;
      if (peer_ != nullptr) {
        const std::vector<ReplicaInput> inputs = {{0, input_, &route}};
        outputs = peer_->forward(inputs, true).front();
      } else {
        outputs = ours_->forward(input_, route);
      }
      outputs[0].sum().backward();
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / steps;
  }

 private:
  Case value_;
  std::unique_ptr<GlooCommunicator> communicator_;
  at::Tensor input_;
  std::shared_ptr<GraphModel> model_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<DistributedDataParallel<GraphModel>> ours_;
  std::unique_ptr<GradientSync> peer_;
  std::int64_t step_ = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void measure(const Workload& workload, const std::vector<Variant>& variants, int rounds) {
  RendezvousDirectory directory = RendezvousDirectory::create();
  const auto device = GlooDevice::open();
  std::vector<std::vector<double>> seconds(variants.size());
  std::vector<std::thread> ranks;
  const auto measure_rank = [&](std::int64_t rank) {
    at::set_num_threads(1);
    std::vector<std::unique_ptr<Subject>> subjects;
    for (const Variant& variant : variants) {
      GlooOptions options;
      options.rank = rank;
      options.world_size = kRanks;
      options.directory = directory.path();
      options.token = directory.token();
      options.group = fmt::format("variant{}", subjects.size());
      options.device = device;
      subjects.push_back(std::make_unique<Subject>(workload, variant, options));
    }
    for (int round = 0; round < rounds + 2; ++round) {
      for (std::size_t turn = 0; turn < subjects.size(); ++turn) {
        // Nobody always follows the same one.
        const std::size_t i = (turn + static_cast<std::size_t>(round)) % subjects.size();
        const double of_step = subjects[i]->run(workload.steps);
        if (rank == 0 && round >= 2) {  // buckets are rebuilt in the first two
          seconds[i].push_back(of_step);
        }
      }
      if (rank == 0) {
        directory.remove();  // all have met: whatever ends this program leaves nothing behind
      }
    }
  };
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        measure_rank(rank);
      } catch (const std::exception& error) {
        fmt::print(stderr, "step_bench: rank {}: {}\n", rank, error.what());
        directory.remove();
        std::_Exit(1);  // the other rank waits for this one
      }
    });
  }
  for (std::thread& rank : ranks) {
    rank.join();
  }
  for (std::size_t i = 0; i < variants.size(); ++i) {
    fmt::print("{:<22} {:<24} {:>9.3f} ms a step, {:.3f} of the first\n", workload.name,
               variants[i].name, median(seconds[i]) * 1e3, median(seconds[i]) / median(seconds[0]));
  }
}

Workload mlp() {
  Workload workload{"MLP of 25 M", {}, 2048, 1};
  workload.model.widths = {2048, 2048, 2048, 2048, 2048, 2048, 2048};
  return workload;
}

Workload many_tensors() {
  Workload workload{"1,000 tensors of 1 KiB", {}, 256, 4};
  workload.model.kind = "graph";
  for (int i = 0; i < 1000; ++i) {
    workload.model.blocks.emplace_back(fmt::format("s{}", i), "scale 256");
  }
  return workload;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  at::set_num_threads(1);
  const std::vector<Variant> variants = {{"DDP", "ddp", "off"},
                                         {"DDP, fast checks", "ddp", "fast"},
                                         {"PyTorch's reducer", "torch", "off"}};
  for (const Workload& workload : {mlp(), many_tensors()}) {
    measure(workload, variants, rounds);
  }
  return 0;
}
