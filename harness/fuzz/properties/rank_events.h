// SPDX-License-Identifier: Apache-2.0
// What the wrapper of each rank told while it worked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/run.h"

namespace lockstep::harness::fuzz {

struct RankEvent {
  std::string kind;  ///< "forward", "gradient_ready", "bucket_launched", ..., see core/observer.h
  std::int64_t index = -1;
};

/// Per rank, in order: those of a simulator's trace (Run::trace_text).
std::vector<std::vector<RankEvent>> events_in(const std::string& trace_text, std::int64_t ranks);

/// Those of a case's run in the simulator, on the schedule that `subject` took.
std::vector<std::vector<RankEvent>> events_of(const Case& value, const Run& subject);

}  // namespace lockstep::harness::fuzz
