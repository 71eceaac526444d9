// SPDX-License-Identifier: Apache-2.0
// Judges what real ranks wrote down: do they hold the same bits, did they issue the same
// collectives, and did all come to their end?
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "harness/audit/rank_record.h"
#include "harness/outcome.h"

namespace lockstep::harness {

/// What some ranks hold of a tensor.
struct HeldBy {
  std::vector<std::int64_t> ranks;  ///< ascending
  std::string content;
};

/// The first state that is not alike.
struct StateDifference {
  std::string what;
  std::int64_t step = 0;
  std::string tensor;        ///< the first in order that differs
  std::vector<HeldBy> held;  ///< most ranks first; of another run: this one's, the other's
  std::int64_t num_differ = 0, num_tensors = 0;  ///< of this state
  std::string alike_before;  ///< what was compared right before it: "gradients of step 3"
};

struct Audit {
  std::int64_t world_size = 0;
  std::vector<std::int64_t> steps;        ///< that some rank recorded, ascending
  std::int64_t num_states = 0;            ///< that two ranks or more have, and were compared
  std::int64_t num_states_of_others = 0;  ///< of ranks, that were compared with the other run's
  std::int64_t num_collectives = 0;       ///< of the rank with the most
  std::optional<StateDifference> difference, from_other_run;
  /// kDeadlock: ranks wait for ever. kError: a rank failed. kDiverged: a difference or a wrong
  /// pairing. Else kEqual. How ranks stand, who is missing from what and the pairing are in it.
  Outcome outcome;
  std::vector<std::int64_t> without_record;  ///< ranks, ascending
  std::vector<std::int64_t> without_end;     ///< of those with one: ranks that may go on
  std::vector<std::string> notes;  ///< what was not compared, waits that failed; one sentence each
};

/// Precondition: `records` as `read_records` gives them; `other` alike, or null.
///
/// States are compared over the ranks that recorded them, but for those that all of these call
/// their own. With `other`: what both runs recorded, rank by rank or, where their world sizes
/// differ, with its first record and without what is a rank's own.
///
/// A rank waits for ever if it waits for one that has ended or waits for ever itself, and that has
/// issued nothing, or something else, in the place of the collective; in a broadcast whose root is
/// known it waits for that. A rank whose record has no end and no wait may go on.
Audit audit(const std::vector<RankRecord>& records, const std::vector<RankRecord>* other = nullptr);

/// Whether something was compared and nothing is wrong; `so_far`: ranks without record or end are
/// taken for those of a run that goes on.
bool is_in_lockstep(const Audit& audit, bool so_far);

/// For people; lines, each ended.
std::string describe(const Audit& audit, const std::string& folder, bool so_far);

}  // namespace lockstep::harness
