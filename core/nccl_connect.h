// SPDX-License-Identifier: Apache-2.0
// How the ranks of an NCCL communicator come together. Internal to the NCCL transport.
#pragma once

#include "core/nccl_api.h"
#include "core/nccl_communicator.h"

namespace lockstep {

struct NcclConnection {
  NcclComm comm = nullptr;
  int device = 0;
};

/// Meets the other ranks in the rendezvous directory, hands out rank 0's unique id there, and
/// connects. Errors: see NcclCommunicator's constructor.
NcclConnection connect_nccl(const NcclApi& api, const NcclOptions& options);

/// Ranks that one GPU can carry: 1, or more where NCCL 2.30 and later were told so
/// (NCCL_MULTI_RANK_GPU_ENABLE=1; NCCL's own default is 2).
int nccl_ranks_per_gpu(const NcclApi& api);

}  // namespace lockstep
