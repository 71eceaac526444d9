// SPDX-License-Identifier: Apache-2.0
// What led to a run that stands still, failed or drifted: who is missing from what, where ranks
// first issued different collectives, and what became of a reduction that was never finished.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "harness/case.h"
#include "harness/outcome.h"
#include "harness/run.h"

namespace lockstep::harness {

/// Whether kind, site, step, bucket, size and dtype are the same.
bool same_collective(const CollectiveRecord& a, const CollectiveRecord& b);

/// Every collective that ranks wait in, by seq, with the ranks that are missing from it and what
/// they did instead.
std::vector<StuckCollective> stuck_collectives(const Run& run);

/// The first seq at which two ranks issued collectives of different kind, site, step, bucket, size
/// or dtype; whether or not the transport minded. Empty if every rank's sequence is the beginning
/// of the longest.
std::optional<WrongPairing> first_wrong_pairing(const Run& run);

/// What `rank` did by [[at]] and [[fault]], as far as it came, that not all ranks did: "left out
/// vision in step 1". Raising an error and leaving are not told again, for the rank's end does.
std::vector<std::string> done_alone(const Case& value, const RankRun& rank);

/// Which of the three endings of an unfinished reduction this is, with the reason:
///   "unfinished_hang"   others wait for a bucket that a rank never launched
///   "unfinished_error"  nobody waited, and the rank's next forward, or checked mode, noticed
///   "unfinished_drift"  no forward followed, so nobody noticed
/// and "wrong_pairing" where there is one. `outcome.ranks` holds the ranks with parameters that
/// never became ready, at least.
std::vector<CauseHypothesis> diagnoses_of(const Outcome& outcome);

}  // namespace lockstep::harness
