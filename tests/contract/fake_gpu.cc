// SPDX-License-Identifier: Apache-2.0
// Streams as queues of things that are asked, again and again, whether they are done.
#include "tests/contract/fake_gpu.h"

#include <c10/core/TensorImpl.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <cstdlib>
#include <utility>

namespace lockstep::test {

namespace {

thread_local int current_device = 0;

}  // namespace

FakeGpu::FakeGpu(int num_gpus) : num_gpus_(num_gpus) {
  add_cuda();
  add_nccl();
}

FakeGpu::~FakeGpu() {
  for (const auto& [memory, bytes] : pinned_) {
    std::free(memory);
  }
}

FakeGpu::Stream& FakeGpu::caller_stream(int device) {
  Stream*& stream = callers_[device];
  if (stream == nullptr) {
    streams_.push_back(std::make_unique<Stream>());
    stream = streams_.back().get();
    stream->name = "caller";
  }
  return *stream;
}

void FakeGpu::pump() {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& stream : streams_) {
      while (!stream->work.empty() && stream->work.front()()) {
        stream->work.pop_front();
        moved = true;
      }
    }
  }
}

void FakeGpu::occupy(int device) {
  const Lock lock(mutex_);
  occupied_.insert(device);
  caller_stream(device).work.push_back(
      [this, device] { return occupied_.find(device) == occupied_.end(); });
}

void FakeGpu::release(int device) {
  const Lock lock(mutex_);
  occupied_.erase(device);
  pump();
}

void FakeGpu::note(int device, const std::string& text) {
  const Lock lock(mutex_);
  caller_stream(device).work.push_back([this, text] {
    ran_.push_back(text);
    return true;
  });
  pump();
}

std::vector<std::string> FakeGpu::ran() {
  const Lock lock(mutex_);
  pump();
  return ran_;
}

std::vector<std::string> FakeGpu::calls() {
  const Lock lock(mutex_);
  return calls_;
}

void FakeGpu::report_error(int error) {
  const Lock lock(mutex_);
  error_ = error;
}

int FakeGpu::num_aborted() {
  const Lock lock(mutex_);
  return num_aborted_;
}
int FakeGpu::num_destroyed() {
  const Lock lock(mutex_);
  return num_destroyed_;
}
int FakeGpu::num_misused() {
  const Lock lock(mutex_);
  return num_misused_;
}
std::size_t FakeGpu::pinned_bytes() {
  const Lock lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [memory, of_block] : pinned_) {
    bytes += of_block;
  }
  return bytes;
}

at::Tensor FakeGpu::on_gpu(const at::Tensor& tensor, int device) {
  const at::Device place(at::kCUDA, static_cast<c10::DeviceIndex>(device));
  auto* const owner = new at::Tensor(tensor);
  c10::DataPtr memory(
      tensor.data_ptr(), owner, [](void* context) { delete static_cast<at::Tensor*>(context); },
      place);
  c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.nbytes(), std::move(memory),
                       /*allocator=*/nullptr, /*resizable=*/false);
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), tensor.dtype());
  impl->set_sizes_contiguous(tensor.sizes());
  return at::Tensor(std::move(impl));
}

void FakeGpu::add_cuda() {
  api.device_count = [this](int* count) {
    *count = num_gpus_;
    return kGpuSuccess;
  };
  api.get_device = [](int* device) {
    *device = current_device;
    return kGpuSuccess;
  };
  api.set_device = [](int device) {
    current_device = device;
    return kGpuSuccess;
  };
  api.device_address = [this](std::string* address, int device) {
    *address = fmt::format("0000:{:02x}:00.0", share_one_gpu ? 0 : device);
    return kGpuSuccess;
  };
  api.create_stream = [this](CudaStream* stream) {
    const Lock lock(mutex_);
    streams_.push_back(std::make_unique<Stream>());
    streams_.back()->name = "side";
    *stream = reinterpret_cast<CudaStream>(streams_.back().get());
    return kGpuSuccess;
  };
  api.destroy_stream = [](CudaStream) { return kGpuSuccess; };
  api.create_event = [this](CudaEvent* event, bool) {
    const Lock lock(mutex_);
    events_.push_back(std::make_unique<Event>());
    events_.back()->name = fmt::format("e{}", events_.size() - 1);
    *event = reinterpret_cast<CudaEvent>(events_.back().get());
    return kGpuSuccess;
  };
  api.destroy_event = [](CudaEvent) { return kGpuSuccess; };
  api.record_event = [this](CudaEvent handle, CudaStream stream) {
    const Lock lock(mutex_);
    Event& event = real<Event>(handle);
    calls_.push_back(fmt::format("record {} in {}", event.name, real<Stream>(stream).name));
    real<Stream>(stream).work.push_back([&event, turn = ++event.num_recorded] {
      event.num_passed = std::max(event.num_passed, turn);
      return true;
    });
    pump();
    return kGpuSuccess;
  };
  api.stream_wait_event = [this](CudaStream stream, CudaEvent handle) {
    const Lock lock(mutex_);
    Event& event = real<Event>(handle);
    calls_.push_back(fmt::format("{} waits for {}", real<Stream>(stream).name, event.name));
    real<Stream>(stream).work.push_back(
        [&event, turn = event.num_recorded] { return event.num_passed >= turn; });
    pump();
    return kGpuSuccess;
  };
  api.query_event = [this](CudaEvent handle) {
    const Lock lock(mutex_);
    pump();
    const Event& event = real<Event>(handle);
    return event.num_passed == event.num_recorded ? kGpuSuccess : kCudaNotReady;
  };
  api.elapsed = [](float* milliseconds, CudaEvent, CudaEvent) {
    *milliseconds = 0;
    return kGpuSuccess;
  };
  api.allocate_pinned = [this](void** memory, std::size_t bytes) {
    const Lock lock(mutex_);
    *memory = std::malloc(bytes);
    pinned_[*memory] = bytes;
    return kGpuSuccess;
  };
  api.free_pinned = [this](void* memory) {
    const Lock lock(mutex_);
    pinned_.erase(memory);
    std::free(memory);
    return kGpuSuccess;
  };
  api.cuda_text = [](int error) { return fmt::format("text of CUDA error {}", error); };
  api.current_stream = [this](int device) {
    const Lock lock(mutex_);
    return reinterpret_cast<CudaStream>(&caller_stream(device));
  };
}

}  // namespace lockstep::test
