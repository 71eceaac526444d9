// SPDX-License-Identifier: Apache-2.0
// Judges what real ranks wrote down: do they hold the same bits, did they issue the same
// collectives, and did all come to their end?
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "harness/audit/rank_record.h"
#include "harness/outcome.h"

namespace lockstep::harness {

/// The first state that is not alike.
struct StateDifference {
  std::string what;
  std::int64_t step = 0;
  std::string tensor;  ///< the first in order that differs
  /// By whom what is held: ranks ascending, the most first. Compared with another run: two entries,
  /// this run's and the other's.
  std::vector<std::pair<std::vector<std::int64_t>, std::string>> held;
  std::int64_t num_differ = 0, num_tensors = 0;  ///< of this state
  std::string alike_before;  ///< the state right before it: "gradients of step 3"; empty: none
};

struct Audit {
  std::int64_t world_size = 0;
  std::int64_t num_states = 0;           ///< that were compared, each over all ranks that have it
  std::int64_t num_states_of_other = 0;  ///< that were compared with the other run's
  std::int64_t num_collectives = 0;      ///< of the rank with the most
  std::vector<std::int64_t> steps;       ///< that were recorded by some rank, ascending
  std::optional<StateDifference> difference;
  std::optional<StateDifference> from_other_run;  ///< of the lowest rank that has the first one
  /// kDeadlock: ranks wait for ever. kError: a rank failed. kDiverged: a difference or a wrong
  /// pairing. Else kEqual. The ranks, who is missing from what and the pairing are in it.
  Outcome outcome;
  std::vector<std::int64_t> without_record;  ///< ranks, ascending
  std::vector<std::int64_t> without_end;     ///< of those with one: ranks that may go on
};

/// `records` as `read_records` gives them. States that ranks may differ in are compared with
/// `other`'s only. What both runs recorded is compared rank by rank or, where their world sizes
/// differ, with its rank 0, without such states.
///
/// A rank waits for ever if it waits for one that has ended, or that waits for ever itself; one
/// whose record has no end and no wait may go on.
Audit audit(const std::vector<RankRecord>& records, const std::vector<RankRecord>* other = nullptr);

/// Whether nothing is wrong; `so_far`: records without an end are taken for those of a run that
/// goes on.
bool is_in_lockstep(const Audit& audit, bool so_far);

/// For people; lines, each ended.
std::string describe(const Audit& audit, const std::string& folder, bool so_far);

}  // namespace lockstep::harness
