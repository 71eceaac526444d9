// SPDX-License-Identifier: Apache-2.0
// What can be said about GPUs and NCCL before a communicator is made.
#include "core/nccl_api.h"

#include <cstdlib>

#include "core/check.h"

namespace lockstep {
namespace {

constexpr char kWayOut[] = "; run on a machine with a GPU, or choose another backend (gloo, sim)";

}  // namespace

int count_gpus(const NcclApi& api) {
  constexpr int kInsufficientDriver = 35, kNoDevice = 100;
  int count = 0;
  const int status = api.device_count(&count);
  LOCKSTEP_USAGE(status != kInsufficientDriver,
                 "NCCL needs an NVIDIA driver, and there is none here that suffices for the CUDA "
                 "runtime of this program ({}){}",
                 api.cuda_text(status), kWayOut);
  LOCKSTEP_USAGE(status != kNoDevice && (status != kGpuSuccess || count > 0),
                 "NCCL needs a GPU, and CUDA sees none (CUDA_VISIBLE_DEVICES may hide them){}",
                 kWayOut);
  LOCKSTEP_USAGE(status == kGpuSuccess, "CUDA cannot be used: {} (error {}){}",
                 api.cuda_text(status), status, kWayOut);
  return count;
}

bool nccl_lets_ranks_share(const NcclApi& api) {
  const char* const enabled = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  int version = 0;
  return api.version(&version) == kGpuSuccess && version >= kNcclSharesGpus && enabled != nullptr &&
         std::string(enabled) == "1";
}

int nccl_ranks_max(const NcclApi& api) {
  constexpr int kPerGpu = 2;
  return count_gpus(api) * (nccl_lets_ranks_share(api) ? kPerGpu : 1);
}

std::string why_no_nccl() {
  try {
    count_gpus(nccl_api());
    return {};
  } catch (const UsageError& error) {
    return error.what();
  }
}

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace lockstep
