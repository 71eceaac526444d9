// SPDX-License-Identifier: Apache-2.0
// What can be said about GPUs and NCCL before a communicator is made.
#include "core/nccl_api.h"

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
