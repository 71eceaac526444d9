// SPDX-License-Identifier: Apache-2.0
// gpu_training: trains on GPUs over NCCL, one thread per rank, and holds two things up: gradients
// are the mean over ranks, bit for bit; and collectives run while backward still computes, as the
// times of events on the GPU show.
//
//   gpu_training --facts      versions and numbers, one line
//   gpu_training gradients    exit 0: as they should be, 1: not, 2: there is no GPU to say
//   gpu_training overlap
#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/distributed_data_parallel.h"
#include "core/nccl_communicator.h"
#include "core/rendezvous.h"

namespace lockstep {
namespace {

using torch::nn::Linear;
using torch::nn::LinearOptions;
using torch::nn::Sequential;
using torch::nn::SequentialImpl;

using Configure = std::function<void(NcclOptions&)>;
using Body = std::function<void(NcclCommunicator&)>;

/// Runs `body` once per rank, each on a thread and GPU of its own; `configure` gets options whose
/// rank is set. False if any rank threw; says what.
bool run_ranks(std::int64_t world_size, const Configure& configure, const Body& body) {
  const RendezvousDirectory directory = RendezvousDirectory::create();
  std::vector<std::thread> threads;
  std::mutex mutex;
  bool is_well = true;
  for (std::int64_t rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        NcclOptions options;
        options.rank = rank;
        options.world_size = world_size;
        options.directory = directory.path();
        options.token = directory.token();
        options.device = rank % count_gpus(nccl_api());
        configure(options);
        NcclCommunicator communicator(options);
        body(communicator);
      } catch (const std::exception& error) {
        const std::lock_guard<std::mutex> lock(mutex);
        fmt::print("rank {}: {}\n", rank, error.what());
        is_well = false;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return is_well;
}

at::TensorOptions on_gpu(const NcclCommunicator& communicator) {
  return at::TensorOptions(
      at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(communicator.device())));
}

/// Small whole numbers: products and sums of a few thousand of them are exact in float32.
at::Tensor whole_numbers(at::IntArrayRef sizes, std::int64_t seed) {
  std::int64_t numel = 1;
  for (const std::int64_t size : sizes) {
    numel *= size;
  }
  return ((at::arange(numel, at::kLong) * 7 + seed * 5).remainder(9) - 4)
      .to(at::kFloat)
      .reshape(sizes);
}

Sequential exact_model(const at::TensorOptions& place) {
  Sequential model(Linear(16, 32), Linear(32, 8));
  std::int64_t seed = 1;
  for (at::Tensor& parameter : model->parameters()) {
    parameter.set_data(whole_numbers(parameter.sizes(), seed++).remainder(3).to(place.device()));
  }
  return model;
}

/// Gradients of one rank's batch, without DDP.
std::vector<at::Tensor> own_gradients(std::int64_t rank, const at::TensorOptions& place) {
  Sequential model = exact_model(place);
  model->forward(whole_numbers({8, 16}, 100 + rank).to(place.device())).sum().backward();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : model->parameters()) {
    gradients.push_back(parameter.grad());
  }
  return gradients;
}

/// The mean over ranks: g = (g_0 + ... + g_{w-1}) / w. With w a power of two all of it is exact, so
/// the order of additions does not matter.
bool check_gradients(std::int64_t world_size) {
  std::vector<bool> is_equal(static_cast<std::size_t>(world_size), false);
  const bool is_well = run_ranks(
      world_size, [](NcclOptions&) {},
      [&](NcclCommunicator& communicator) {
        const at::TensorOptions place = on_gpu(communicator);
        DdpOptions options;
        options.bucket_cap_bytes = 1024;  // several buckets
        DistributedDataParallel<SequentialImpl> ddp(exact_model(place).ptr(), communicator,
                                                    options);
        bool equal = true;
        for (int step = 0; step < 3; ++step) {  // buckets are rebuilt after the first
          ddp.module().zero_grad();
          ddp.forward(whole_numbers({8, 16}, 100 + communicator.rank()).to(place.device()))
              .sum()
              .backward();
          std::vector<at::Tensor> mean;
          for (std::int64_t rank = 0; rank < world_size; ++rank) {
            const auto gradients = own_gradients(rank, place);
            for (std::size_t i = 0; i < gradients.size(); ++i) {
              if (mean.size() <= i) {
                mean.push_back(gradients[i]);
              } else {
                mean[i] += gradients[i];
              }
            }
          }
          const auto parameters = ddp.module().parameters();
          for (std::size_t i = 0; i < parameters.size(); ++i) {
            equal = equal && parameters[i].grad().equal(mean[i] / static_cast<double>(world_size));
          }
        }
        is_equal[static_cast<std::size_t>(communicator.rank())] = equal;
      });
  const bool all =
      is_well && std::all_of(is_equal.begin(), is_equal.end(), [](bool e) { return e; });
  fmt::print("gradients on {} GPU rank{}: {} the mean over ranks, bit for bit\n", world_size,
             world_size == 1 ? "" : "s", all ? "are" : "ARE NOT");
  return all;
}

struct BucketTime {
  std::int64_t bucket = 0;
  float begun_ms = 0, ended_ms = 0;  ///< from the start of backward
};

/// What one rank saw of the measured step.
struct StepTimes {
  CudaEvent origin = nullptr;  ///< backward begins
  std::mutex mutex;            ///< guards `buckets`, which the communicator's thread fills
  std::vector<BucketTime> buckets;
  float last_gradient_ms = 0;  ///< the kernels of all gradients have run
};

/// Marks, in the stream of gradient kernels, the moment when the last bucket is launched.
class LastLaunch final : public Observer {
 public:
  LastLaunch(CudaEvent event, int device) : event_(event), device_(device) {}
  void on_event(const Event& event) override {
    if (event.kind == EventKind::kBucketLaunched) {
      // Every launch moves the mark; after backward it is that of the last.
      nccl_api().record_event(event_, nccl_api().current_stream(device_));
    }
  }

 private:
  CudaEvent event_;
  int device_;
};

constexpr std::int64_t kMeasuredStep = 3;  // after warming up and rebuilding buckets

void note_bucket(StepTimes& times, const CollectiveDescription& what, CudaEvent begun,
                 CudaEvent ended) {
  if (what.tag.site != CallSite::kBucket || what.tag.step != kMeasuredStep) {
    return;
  }
  BucketTime time{what.tag.bucket, 0, 0};
  nccl_api().elapsed(&time.begun_ms, times.origin, begun);
  nccl_api().elapsed(&time.ended_ms, times.origin, ended);
  const std::lock_guard<std::mutex> lock(times.mutex);
  times.buckets.push_back(time);
}

void train_and_measure(NcclCommunicator& communicator, StepTimes& times) {
  constexpr std::int64_t kWidth = 4096, kLayers = 8, kBatch = 4096;
  const NcclApi& api = nccl_api();
  const at::TensorOptions place = on_gpu(communicator);
  const ScopedGpu gpu(api, communicator.device());
  CudaEvent last = nullptr;
  api.create_event(&last, /*timed=*/true);
  LastLaunch observer(last, communicator.device());
  Sequential model;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    model->push_back(Linear(LinearOptions(kWidth, kWidth).bias(false)));
  }
  model->to(place.device());
  DdpOptions options;
  options.observer = &observer;
  options.bucket_cap_bytes = kWidth * kWidth * 4;  // a layer
  DistributedDataParallel<SequentialImpl> ddp(model.ptr(), communicator, options);
  const at::Tensor batch = at::randn({kBatch, kWidth}, place);
  for (std::int64_t step = 0; step <= kMeasuredStep; ++step) {
    ddp.set_step(step);
    ddp.module().zero_grad();
    const at::Tensor loss = ddp.forward(batch).sum();
    communicator.barrier({})->wait();  // ranks enter backward together
    api.record_event(times.origin, api.current_stream(communicator.device()));
    loss.backward();
  }
  communicator.barrier({})->wait();  // all before it has ended and been noted
  api.elapsed(&times.last_gradient_ms, times.origin, last);
  api.destroy_event(last);
}

/// Prints one rank's times. True if its first collective began before the last gradient was there.
bool print_times(std::size_t rank, const StepTimes& times) {
  float total_ms = 0, early_ms = 0;
  for (const BucketTime& bucket : times.buckets) {
    fmt::print("rank {} bucket {}: all_reduce from {:.3f} to {:.3f} ms\n", rank, bucket.bucket,
               bucket.begun_ms, bucket.ended_ms);
    total_ms += bucket.ended_ms - bucket.begun_ms;
    early_ms += std::max(0.0F, std::min(bucket.ended_ms, times.last_gradient_ms) - bucket.begun_ms);
  }
  fmt::print("rank {}: last gradient at {:.3f} ms; {:.3f} of {:.3f} ms of all_reduce before it\n",
             rank, times.last_gradient_ms, early_ms, total_ms);
  return times.buckets.size() > 1 && times.buckets.front().begun_ms < times.last_gradient_ms;
}

bool check_overlap(std::int64_t world_size) {
  std::vector<StepTimes> of_ranks(static_cast<std::size_t>(world_size));
  const auto configure = [&](NcclOptions& options) {
    StepTimes& times = of_ranks[static_cast<std::size_t>(options.rank)];
    const ScopedGpu gpu(nccl_api(), static_cast<int>(options.device));
    nccl_api().create_event(&times.origin, /*timed=*/true);
    options.on_ended = [&times](const CollectiveDescription& what, CudaEvent begun,
                                CudaEvent ended) { note_bucket(times, what, begun, ended); };
  };
  bool overlaps = run_ranks(world_size, configure, [&](NcclCommunicator& communicator) {
    train_and_measure(communicator, of_ranks[static_cast<std::size_t>(communicator.rank())]);
  });
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    overlaps = print_times(rank, of_ranks[rank]) && overlaps;
  }
  fmt::print("overlap on {} GPU rank{}: {}{}\n", world_size, world_size == 1 ? "" : "s",
             overlaps ? "collectives begin before the last gradient is there" : "NOT SEEN",
             world_size == 1 ? " (one rank has nothing to send: order only)" : "");
  return overlaps;
}

/// A power of two, so that means are exact.
std::int64_t ranks_to_use() {
  std::int64_t ranks = 1;
  while (2 * ranks <= std::min<std::int64_t>(nccl_ranks_max(nccl_api()), 8)) {
    ranks *= 2;
  }
  return ranks;
}

int run(const std::string& what) {
  const std::string reason = why_no_nccl();
  if (!reason.empty() || !at::hasCUDA()) {
    fmt::print("gpu_training: {}\n",
               reason.empty() ? "this LibTorch was built without CUDA, or sees no GPU" : reason);
    return 2;
  }
  if (what == "--facts") {
    int version = 0;
    nccl_api().version(&version);
    fmt::print("NCCL {}, {} GPUs, up to {} ranks\n", nccl_version_text(version),
               count_gpus(nccl_api()), nccl_ranks_max(nccl_api()));
    return 0;
  }
  if (what == "gradients") {
    return check_gradients(ranks_to_use()) ? 0 : 1;
  }
  if (what == "overlap") {
    return check_overlap(ranks_to_use()) ? 0 : 1;
  }
  fmt::print("usage: gpu_training --facts | gradients | overlap\n");
  return 2;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::run(argc == 2 ? argv[1] : "");
  } catch (const std::exception& error) {
    fmt::print("gpu_training: {}\n", error.what());
    return 1;
  }
}
