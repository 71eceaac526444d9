// SPDX-License-Identifier: Apache-2.0
// Names of collectives as they appear in traces and reports.
#include "core/communicator.h"

#include "core/check.h"

namespace lockstep {

std::string_view to_string(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kBarrier:
      return "barrier";
  }
  throw InvariantError("unknown collective kind");
}

std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMax:
      return "max";
  }
  throw InvariantError("unknown reduce op");
}

std::string_view to_string(CallSite site) {
  switch (site) {
    case CallSite::kParamCount:
      return "param_count";
    case CallSite::kParamShapes:
      return "param_shapes";
    case CallSite::kModuleStates:
      return "module_states";
    case CallSite::kBucket:
      return "bucket";
    case CallSite::kUsedMap:
      return "used_map";
    case CallSite::kRebuildOrder:
      return "rebuild_order";
    case CallSite::kRebuildSizes:
      return "rebuild_sizes";
    case CallSite::kBuffers:
      return "buffers";
    case CallSite::kParameter:
      return "parameter";
    case CallSite::kBarrier:
      return "barrier";
    case CallSite::kScript:
      return "script";
    case CallSite::kSyncBatchNorm:
      return "sync_batch_norm";
    case CallSite::kJoinActive:
      return "join_active";
    case CallSite::kJoinEarlyEnd:
      return "join_early_end";
    case CallSite::kJoinPlan:
      return "join_plan";
    case CallSite::kJoinSource:
      return "join_source";
    case CallSite::kChecks:
      return "checks";
  }
  throw InvariantError("unknown call site");
}

}  // namespace lockstep
