// SPDX-License-Identifier: Apache-2.0
// The only file that knows NCCL, the CUDA runtime, and how a CUDA LibTorch names its streams.
#include "core/check.h"
#include "core/nccl_api.h"

#ifdef LOCKSTEP_WITH_NCCL
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#endif
#ifdef LOCKSTEP_WITH_C10_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace lockstep {

#ifndef LOCKSTEP_WITH_NCCL

const NcclApi& nccl_api() {
  throw UsageError(
      "this program was built without NCCL: CUDA's runtime and NCCL were not found when it was "
      "configured. Install both and configure anew with -DLOCKSTEP_NCCL=ON "
      "(-DLOCKSTEP_CUDA_DIR=... "
      "where they are in no usual place), or choose another backend (gloo, sim)");
}

#else

namespace {

static_assert(kCudaNotReady == cudaErrorNotReady && kNcclInProgress == ncclInProgress &&
              kNcclSystemError == ncclSystemError && kNcclRemoteError == ncclRemoteError);
static_assert(sizeof(NcclId) == NCCL_UNIQUE_ID_BYTES);
static_assert(static_cast<int>(NcclType::kInt8) == ncclInt8 &&
              static_cast<int>(NcclType::kUint8) == ncclUint8 &&
              static_cast<int>(NcclType::kInt32) == ncclInt32 &&
              static_cast<int>(NcclType::kInt64) == ncclInt64 &&
              static_cast<int>(NcclType::kFloat16) == ncclFloat16 &&
              static_cast<int>(NcclType::kFloat32) == ncclFloat32 &&
              static_cast<int>(NcclType::kFloat64) == ncclFloat64 &&
              static_cast<int>(NcclType::kBfloat16) == ncclBfloat16);
static_assert(static_cast<int>(NcclOp::kSum) == ncclSum &&
              static_cast<int>(NcclOp::kMax) == ncclMax);

ncclDataType_t type_of(NcclType type) { return static_cast<ncclDataType_t>(type); }

void add_cuda(NcclApi& api) {
  api.device_count = [](int* count) { return cudaGetDeviceCount(count); };
  api.get_device = [](int* device) { return cudaGetDevice(device); };
  api.set_device = [](int device) { return cudaSetDevice(device); };
  api.device_address = [](std::string* address, int device) {
    char text[32] = {};
    const cudaError_t status = cudaDeviceGetPCIBusId(text, sizeof(text), device);
    *address = text;
    return status;
  };
  api.create_stream = [](CudaStream* stream) {
    // Of the highest priority: a short collective must not queue behind long gradient kernels.
    int lowest = 0, highest = 0;
    const cudaError_t status = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    return status != cudaSuccess
               ? status
               : cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, highest);
  };
  api.destroy_stream = [](CudaStream stream) { return cudaStreamDestroy(stream); };
  api.create_event = [](CudaEvent* event, bool timed) {
    return cudaEventCreateWithFlags(event, timed ? cudaEventDefault : cudaEventDisableTiming);
  };
  api.destroy_event = [](CudaEvent event) { return cudaEventDestroy(event); };
  api.record_event = [](CudaEvent event, CudaStream stream) {
    return cudaEventRecord(event, stream);
  };
  api.stream_wait_event = [](CudaStream stream, CudaEvent event) {
    return cudaStreamWaitEvent(stream, event, 0);
  };
  api.query_event = [](CudaEvent event) {
    const cudaError_t status = cudaEventQuery(event);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // not an error, though it is noted down as one
    }
    return status;
  };
  api.elapsed = [](float* milliseconds, CudaEvent from, CudaEvent to) {
    return cudaEventElapsedTime(milliseconds, from, to);
  };
  api.allocate_pinned = [](void** memory, std::size_t bytes) {
    return cudaHostAlloc(memory, bytes, cudaHostAllocPortable);
  };
  api.free_pinned = [](void* memory) { return cudaFreeHost(memory); };
  api.cuda_text = [](int error) {
    return std::string(cudaGetErrorString(static_cast<cudaError_t>(error)));
  };
#ifdef LOCKSTEP_WITH_C10_CUDA
  api.current_stream = [](int device) {
    return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
  };
#else
  // A LibTorch without CUDA has no tensors on a GPU: nothing runs there but collectives.
  api.current_stream = [](int) { return CudaStream{nullptr}; };
#endif
}

void add_nccl(NcclApi& api) {
  api.version = [](int* version) { return ncclGetVersion(version); };
  api.unique_id = [](NcclId* id) {
    ncclUniqueId theirs;
    const ncclResult_t status = ncclGetUniqueId(&theirs);
    std::memcpy(id->data(), theirs.internal, id->size());
    return status;
  };
  api.init_rank = [](NcclComm* comm, int world_size, const NcclId& id, int rank) {
    ncclUniqueId theirs;
    std::memcpy(theirs.internal, id.data(), id.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return ncclCommInitRankConfig(comm, world_size, theirs, rank, &config);
  };
  api.async_error = [](NcclComm comm, int* error) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t status = ncclCommGetAsyncError(comm, &state);
    *error = state;
    return status;
  };
  api.all_reduce = [](const void* in, void* out, std::size_t count, NcclType type, NcclOp op,
                      NcclComm comm, CudaStream stream) {
    return ncclAllReduce(in, out, count, type_of(type), static_cast<ncclRedOp_t>(op), comm, stream);
  };
  api.broadcast = [](const void* in, void* out, std::size_t count, NcclType type, int root,
                     NcclComm comm, CudaStream stream) {
    return ncclBroadcast(in, out, count, type_of(type), root, comm, stream);
  };
  api.all_gather = [](const void* in, void* out, std::size_t count, NcclType type, NcclComm comm,
                      CudaStream stream) {
    return ncclAllGather(in, out, count, type_of(type), comm, stream);
  };
  api.group_start = [] { return ncclGroupStart(); };
  api.group_end = [] { return ncclGroupEnd(); };
  api.finalize = [](NcclComm comm) { return ncclCommFinalize(comm); };
  api.destroy = [](NcclComm comm) { return ncclCommDestroy(comm); };
  api.abort = [](NcclComm comm) { return ncclCommAbort(comm); };
  api.nccl_text = [](int error, NcclComm comm) {
    const char* const last = ncclGetLastError(comm);
    const std::string text = ncclGetErrorString(static_cast<ncclResult_t>(error));
    return last != nullptr && *last != '\0' ? fmt::format("{}: {}", text, last) : text;
  };
}

NcclApi load() {
  // NCCL connects ranks when communicators are made, not in the first collectives: a launch must
  // not wait for other ranks. Whoever has set it otherwise has reasons.
  ::setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/0);
  NcclApi api;
  add_cuda(api);
  add_nccl(api);
  return api;
}

}  // namespace

const NcclApi& nccl_api() {
  static const NcclApi api = load();
  return api;
}

#endif

}  // namespace lockstep
