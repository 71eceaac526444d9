// SPDX-License-Identifier: Apache-2.0
// A collective in words.
#include <fmt/format.h>

#include <string>

#include "sim/world.h"

namespace lockstep::sim {

std::string to_string(const CollectiveInfo& info) {
  std::string text(to_string(info.kind));
  if (info.kind == CollectiveKind::kAllReduce && info.op != ReduceOp::kSum) {
    text += fmt::format(" {}", to_string(info.op));
  }
  text += fmt::format(" ({}", to_string(info.tag.site));
  if (info.tag.bucket >= 0) {
    text += fmt::format(" {}", info.tag.bucket);
  }
  if (info.tag.step >= 0) {
    text += fmt::format(", step {}", info.tag.step);
  }
  if (info.kind != CollectiveKind::kBarrier) {
    text += fmt::format(", {} x {}", info.numel, info.dtype);
  }
  if (info.kind == CollectiveKind::kBroadcast) {
    text += fmt::format(", from rank {}", info.root);
  }
  return text + ")";
}

}  // namespace lockstep::sim
