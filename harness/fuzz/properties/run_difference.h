// SPDX-License-Identifier: Apache-2.0
// Where two runs that must be alike first are not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/judge/compare.h"
#include "harness/run.h"

namespace lockstep::harness::fuzz {

/// What two runs must have in common, besides how their ranks end.
struct Alike {
  Equality numbers = Equality::kBits;  ///< of gradients, parameters and optimizer state
  bool losses = true;
  bool buffers = true;
  /// Rank r of the other run is held against rank `partner[r]` of the subject; empty: against r.
  std::vector<std::int64_t> partner;
};

/// "rank 1, step 0, gradient head.weight[3]: 0.25 and 0.5", the subject's number first; empty where
/// the runs are alike. Both have the same number of ranks.
std::string run_difference(const Run& subject, const Run& other, const Alike& alike);

/// Whether every rank came to its end.
bool ended_well(const Run& run);

/// Whether some phase of an exact case rounded: then nothing is known of sums in another order.
bool rounded(const Run& run);

}  // namespace lockstep::harness::fuzz
