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

}  // namespace lockstep
