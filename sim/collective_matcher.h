// SPDX-License-Identifier: Apache-2.0
// Pairs the collectives of all ranks by the order in which they are issued, and compares them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/communicator.h"
#include "sim/world.h"

namespace lockstep::sim {

/// One rank's part in a collective. Holds its tensors alive.
struct Contribution {
  CollectiveInfo info;
  at::Tensor tensor;  ///< in place: all_reduce, broadcast; all_gather: the output
  at::Tensor input;   ///< all_gather only
};

/// The k-th collective of each rank is one collective.
///
/// Since every rank issues in order, collectives get complete in order too: one number says which
/// are. After the first mismatch nothing pairs up any more: that collective and all later ones
/// fail.
/// Threads: whoever has the turn.
class CollectiveMatcher {
 public:
  enum class Outcome {
    kPending,   ///< other ranks have not issued it yet
    kComplete,  ///< this was the last rank: `take_complete` is due
    kFailed,    ///< ranks disagree here, or did before
  };

  CollectiveMatcher(std::int64_t world_size, bool check_tags);

  /// The seq of the next collective that `rank` issues.
  std::int64_t next_seq(std::int64_t rank) const;
  /// `contribution.info.seq` is next_seq(rank).
  Outcome post(std::int64_t rank, Contribution contribution);
  /// The contributions of the collective just completed, by rank.
  std::vector<Contribution> take_complete();

  bool is_complete(std::int64_t seq) const { return seq < num_complete_; }
  bool has_failed(std::int64_t seq) const { return failed_from_ && seq >= *failed_from_; }
  const std::optional<Mismatch>& mismatch() const { return mismatch_; }
  /// Who disagrees about what, in words. Precondition: there is a mismatch.
  std::string mismatch_text() const;

  /// What `rank` issued as `seq`. Precondition: it did, and that is neither complete nor failed.
  const CollectiveInfo& pending(std::int64_t rank, std::int64_t seq) const;
  /// The ranks that have not issued `seq`, ascending.
  std::vector<std::int64_t> missing(std::int64_t seq) const;

 private:
  struct Slot {
    std::vector<Contribution> by_rank;
    std::int64_t num_posted = 0;
    std::int64_t first_rank = -1;
  };

  bool agree(const CollectiveInfo& a, const CollectiveInfo& b) const;

  std::int64_t world_size_;
  bool check_tags_;
  std::vector<std::int64_t> next_seq_;  // by rank
  std::deque<Slot> slots_;              // slots_[0] has seq num_complete_
  std::int64_t num_complete_ = 0;
  std::optional<std::int64_t> failed_from_;
  std::optional<Mismatch> mismatch_;
};

}  // namespace lockstep::sim
