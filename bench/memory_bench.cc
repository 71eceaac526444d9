// SPDX-License-Identifier: Apache-2.0
// Peak memory of training with DDP, ours and PyTorch's reducer, over that of the same training
// without: two MLPs of 25 M parameters, 2 ranks over Gloo, each in a process of its own. What a
// process held before it built its model (libraries, LibTorch's own state) is taken off.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/distributed_data_parallel.h"
#include "core/gloo_communicator.h"
#include "core/gloo_device.h"
#include "core/rendezvous.h"
#include "harness/graph_model.h"
#include "harness/sync/gradient_sync.h"

namespace {

using namespace lockstep;           // NOLINT: a program of its own
using namespace lockstep::harness;  // NOLINT

constexpr std::int64_t kRanks = 2, kBatch = 8;
constexpr int kSteps = 4;  // buckets are rebuilt in the second

struct Workload {
  std::int64_t layers = 0, width = 0;
};

struct Variant {
  std::string name, sync;
  bool gradient_as_bucket_view = false;
};

// A line of this process's status, in KiB.
double status_kib(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == key + ":") {
      double kib = 0;
      status >> kib;
      return kib;
    }
  }
  return 0;
}

void train(const Workload& workload, const Variant& variant, GlooCommunicator& communicator) {
  Case value;
  value.model.widths.assign(static_cast<std::size_t>(workload.layers) + 1, workload.width);
  value.ddp.sync = variant.sync;
  value.ddp.gradient_as_bucket_view = variant.gradient_as_bucket_view;
  const auto model = std::make_shared<GraphModel>(value.model, false, 1, 0);
  const auto sync = make_gradient_sync({&value, model, &communicator, nullptr, {}});
  const at::Tensor input = at::ones({kBatch, workload.width});
  const Route everything;
  for (int step = 0; step < kSteps; ++step) {
    for (at::Tensor& parameter : model->parameters()) {
      parameter.mutable_grad() = at::Tensor();
    }
    sync->begin_step(step);
    sync->forward({{0, input, &everything}}, true)[0][0].sum().backward();
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) {
      parameter.sub_(parameter.grad(), 1e-6);
    }
  }
}

// One rank's peak in KiB, as a child process; written to `out`.
void be_rank(const Workload& workload, const Variant& variant, std::int64_t rank,
             const RendezvousDirectory& directory, int out) {
  // A tensor's memory goes back when it is freed: no share of malloc's in the figures.
  mallopt(M_MMAP_THRESHOLD, 128 * 1024);
  at::set_num_threads(1);
  GlooOptions options;
  options.rank = rank;
  options.world_size = kRanks;
  options.directory = directory.path();
  options.token = directory.token();
  options.group = "memory";
  options.device = GlooDevice::open();
  const auto communicator = make_gloo_communicator(options);
  // First uses of BLAS and autograd allocate what they keep.
  const at::Tensor small = at::ones({8, 8}).requires_grad_();
  at::mm(small, small).sum().backward();
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak starts from here
  const double before = status_kib("VmRSS");
  train(workload, variant, *communicator);
  const double peak = status_kib("VmHWM") - before;
  if (write(out, &peak, sizeof peak) != sizeof peak) {
    _exit(1);
  }
  communicator->barrier({})->wait();
  _exit(0);
}

// The larger peak of the ranks, in MiB.
double peak_of(const Workload& workload, const Variant& variant) {
  RendezvousDirectory directory = RendezvousDirectory::create();
  std::array<int, 2> pipe_ends{};
  if (pipe(pipe_ends.data()) != 0) {
    directory.remove();
    std::exit(3);
  }
  std::vector<pid_t> children;
  for (std::int64_t rank = 0; rank < kRanks; ++rank) {
    children.push_back(fork());
    if (children.back() == 0) {
      be_rank(workload, variant, rank, directory, pipe_ends[1]);
    }
  }
  close(pipe_ends[1]);
  double peak_max = 0;
  for (double peak = 0; read(pipe_ends[0], &peak, sizeof peak) == sizeof peak;) {
    peak_max = std::max(peak_max, peak);
    directory.remove();  // all have met: whatever ends this program leaves nothing behind
  }
  directory.remove();
  close(pipe_ends[0]);
  for (const pid_t child : children) {
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) {
      fmt::print(stderr, "memory_bench: a rank of '{}' failed (status {})\n", variant.name, status);
      std::exit(1);
    }
  }
  return peak_max / 1024;
}

}  // namespace

int main() {
  const std::vector<Variant> variants = {
      {"no DDP (a barrier a step)", "none", false},
      {"DDP, gradients as bucket views", "ddp", true},
      {"DDP, gradients of their own", "ddp", false},
      {"PyTorch's reducer, bucket views", "torch", true},
      {"PyTorch's reducer, gradients of their own", "torch", false}};
  for (const Workload& workload : {Workload{6, 2048}, Workload{96, 512}}) {
    fmt::print("{} layers of {} x {}\n", workload.layers, workload.width, workload.width);
    double first = 0;
    for (const Variant& variant : variants) {
      const double peak = peak_of(workload, variant);
      first = first == 0 ? peak : first;
      fmt::print("  {:<42} {:>8.1f} MiB, {:.3f} of the first\n", variant.name, peak, peak / first);
    }
  }
  return 0;
}
