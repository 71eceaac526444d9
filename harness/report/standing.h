// SPDX-License-Identifier: Apache-2.0
// How ranks stand at the end of a run, in words.
#pragma once

#include <string>
#include <vector>

#include "harness/outcome.h"

namespace lockstep::harness {

/// "step 2, backward"; "construction" for what comes before the first step.
std::string moment(std::int64_t step, const std::string& phase);

/// "all_reduce (bucket 0, step 2), 212 x Float"; with a seq "all_reduce (seq 7; bucket 0, step 2),
/// 212 x Float".
std::string collective_text(const CollectiveRecord& record, std::int64_t seq = -1);
std::string collective_text(const WaitingIn& waiting);

/// "waits in all_reduce (seq 7; bucket 0, step 2), 212 x Float, for rank 1", "finished", "failed
/// (step 2, forward) with desync: ...". A message that begins with the rank's own name loses that.
/// `are_several`: it is said of several ranks, which wait, stand or were ended.
std::string standing_text(const RankState& state, bool are_several = false);

/// Ranks of which the same is to be said.
struct AlikeRanks {
  std::vector<std::int64_t> ranks;  ///< ascending
  const RankState* first = nullptr;
};
/// In the order of the lowest rank of each. Ranks are alike if they stand alike, with the same
/// parameters missing and the same actions.
std::vector<AlikeRanks> alike_ranks(const std::vector<RankState>& ranks);

}  // namespace lockstep::harness
