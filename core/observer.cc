// SPDX-License-Identifier: Apache-2.0
// Names of events as they appear in traces.
#include "core/observer.h"

#include "core/error.h"

namespace lockstep {

std::string_view to_string(EventKind kind) {
  switch (kind) {
    case EventKind::kForward:
      return "forward";
    case EventKind::kBuffersSynced:
      return "buffers_synced";
    case EventKind::kRebuilt:
      return "rebuilt";
    case EventKind::kGradientReady:
      return "gradient_ready";
    case EventKind::kUnusedMarked:
      return "unused_marked";
    case EventKind::kBucketLaunched:
      return "bucket_launched";
    case EventKind::kFinalized:
      return "finalized";
    case EventKind::kPosted:
      return "posted";
    case EventKind::kCompleted:
      return "completed";
    case EventKind::kWaitBegin:
      return "wait_begin";
    case EventKind::kWaitEnd:
      return "wait_end";
    case EventKind::kStepBegin:
      return "step_begin";
    case EventKind::kStepEnd:
      return "step_end";
    case EventKind::kScript:
      return "script";
    case EventKind::kRankStarted:
      return "rank_started";
    case EventKind::kRankEnded:
      return "rank_ended";
    case EventKind::kResumed:
      return "resumed";
  }
  throw InvariantError("unknown event kind");
}

}  // namespace lockstep
