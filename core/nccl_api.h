// SPDX-License-Identifier: Apache-2.0
// What the NCCL transport uses of NCCL and of the CUDA runtime: one table of functions, so that the
// transport needs neither to be built, and a stand-in can take their place.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string>

// The libraries' own opaque types.
struct CUstream_st;
struct CUevent_st;
struct ncclComm;

namespace lockstep {

using CudaStream = CUstream_st*;
using CudaEvent = CUevent_st*;
using NcclComm = ncclComm*;
using NcclId = std::array<char, 128>;

// Results that the transport tells apart; every other value is an error.
inline constexpr int kGpuSuccess = 0;
inline constexpr int kCudaNotReady = 600;  ///< of query_event: work before the event still runs
inline constexpr int kNcclInProgress = 7;  ///< not an error; see NcclApi::init_rank
inline constexpr int kNcclSystemError = 2;
inline constexpr int kNcclRemoteError = 6;

/// NCCL's numbers for the types and operations in use.
enum class NcclType : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
};
enum class NcclOp : int { kSum = 0, kMax = 2 };

/// Version 2.30.1 and so on as NCCL counts them.
constexpr int nccl_version(int major, int minor, int patch) {
  return major * 10000 + minor * 100 + patch;
}

/// The functions. Those that return int give kGpuSuccess, or the library's own code.
///
/// There is none that makes the host wait for the GPU, on purpose: the transport only ever asks.
/// Threads: from any, but for one `NcclComm` one thread at a time.
struct NcclApi {
  // CUDA runtime.
  std::function<int(int* count)> device_count;
  std::function<int(int* device)> get_device;
  std::function<int(int device)> set_device;                            ///< of the calling thread
  std::function<int(std::string* address, int device)> device_address;  ///< on the PCI bus
  std::function<int(CudaStream* stream)> create_stream;  ///< waits for no other stream by itself
  std::function<int(CudaStream stream)> destroy_stream;
  std::function<int(CudaEvent* event, bool timed)> create_event;
  std::function<int(CudaEvent event)> destroy_event;
  std::function<int(CudaEvent event, CudaStream stream)> record_event;
  std::function<int(CudaStream stream, CudaEvent event)> stream_wait_event;
  std::function<int(CudaEvent event)> query_event;
  std::function<int(float* milliseconds, CudaEvent from, CudaEvent to)> elapsed;
  std::function<int(void** memory, std::size_t bytes)> allocate_pinned;  ///< host memory
  std::function<int(void* memory)> free_pinned;
  std::function<std::string(int error)> cuda_text;

  /// The stream that the calling thread's tensor operations on `device` go to.
  std::function<CudaStream(int device)> current_stream;

  // NCCL. Communicators are of the kind that never blocks: where a function gives kNcclInProgress,
  // `async_error` must be asked until it says something else.
  std::function<int(int* version)> version;
  std::function<int(NcclId* id)> unique_id;
  std::function<int(NcclComm* comm, int world_size, const NcclId& id, int rank)> init_rank;
  std::function<int(NcclComm comm, int* error)> async_error;
  std::function<int(const void* in, void* out, std::size_t count, NcclType type, NcclOp op,
                    NcclComm comm, CudaStream stream)>
      all_reduce;
  std::function<int(const void* in, void* out, std::size_t count, NcclType type, int root,
                    NcclComm comm, CudaStream stream)>
      broadcast;
  std::function<int(const void* in, void* out, std::size_t count, NcclType type, NcclComm comm,
                    CudaStream stream)>
      all_gather;  ///< `count`: of `in`
  std::function<int()> group_start;
  std::function<int()> group_end;
  std::function<int(NcclComm comm)> finalize;
  std::function<int(NcclComm comm)> destroy;
  std::function<int(NcclComm comm)> abort;
  std::function<std::string(int error, NcclComm comm)> nccl_text;
};

/// The real libraries. Errors: UsageError where this program was built without them.
const NcclApi& nccl_api();

/// Number of GPUs. Errors: UsageError naming cause and way out where there is none, or no driver.
int count_gpus(const NcclApi& api);

/// Ranks that all GPUs together can carry: one each, or two where NCCL 2.30 or later was told to
/// let ranks share a GPU (NCCL_MULTI_RANK_GPU_ENABLE=1; two is its default). Errors: as count_gpus.
int nccl_ranks_max(const NcclApi& api);
/// From this version on ranks may share a GPU.
inline constexpr int kNcclSharesGpus = nccl_version(2, 30, 0);
bool nccl_lets_ranks_share(const NcclApi& api);

/// Why no rank could run over NCCL in this process, with the way out; empty if it could.
std::string why_no_nccl();

/// "2.28.9".
std::string nccl_version_text(int version);

/// Makes `device` the calling thread's while it lives.
class ScopedGpu {
 public:
  ScopedGpu(const NcclApi& api, int device) : api_(api) {
    api_.get_device(&previous_);
    api_.set_device(device);
  }
  ~ScopedGpu() { api_.set_device(previous_); }
  ScopedGpu(const ScopedGpu&) = delete;
  ScopedGpu& operator=(const ScopedGpu&) = delete;

 private:
  const NcclApi& api_;  // outlives this
  int previous_ = 0;
};

}  // namespace lockstep
