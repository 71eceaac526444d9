// SPDX-License-Identifier: Apache-2.0
// Pairing by seq, comparison, and the first mismatch.
#include "sim/collective_matcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/check.h"

namespace lockstep::sim {

CollectiveMatcher::CollectiveMatcher(std::int64_t world_size, bool check_tags)
    : world_size_(world_size),
      check_tags_(check_tags),
      next_seq_(static_cast<std::size_t>(world_size), 0) {}

std::int64_t CollectiveMatcher::next_seq(std::int64_t rank) const {
  return next_seq_[static_cast<std::size_t>(rank)];
}

CollectiveMatcher::Outcome CollectiveMatcher::post(std::int64_t rank, Contribution contribution) {
  const std::int64_t seq = next_seq_[static_cast<std::size_t>(rank)]++;
  LOCKSTEP_CHECK(contribution.info.seq == seq, "rank {} issued collective {} as {}", rank, seq,
                 contribution.info.seq);
  if (has_failed(seq)) {
    return Outcome::kFailed;
  }
  const auto index = static_cast<std::size_t>(seq - num_complete_);
  if (index == slots_.size()) {
    slots_.emplace_back();
    slots_.back().by_rank.resize(static_cast<std::size_t>(world_size_));
    slots_.back().first_rank = rank;
  }
  Slot& slot = slots_[index];
  const CollectiveInfo& first = slot.by_rank[static_cast<std::size_t>(slot.first_rank)].info;
  if (slot.first_rank != rank && !agree(first, contribution.info)) {
    mismatch_ = Mismatch{slot.first_rank, rank, first, contribution.info};
    if (mismatch_->first_rank > mismatch_->second_rank) {
      std::swap(mismatch_->first_rank, mismatch_->second_rank);
      std::swap(mismatch_->first, mismatch_->second);
    }
    failed_from_ = seq;
    slots_.resize(index);  // what can never complete need not hold tensors
    return Outcome::kFailed;
  }
  slot.by_rank[static_cast<std::size_t>(rank)] = std::move(contribution);
  ++slot.num_posted;
  return slot.num_posted == world_size_ ? Outcome::kComplete : Outcome::kPending;
}

std::vector<Contribution> CollectiveMatcher::take_complete() {
  LOCKSTEP_CHECK(!slots_.empty() && slots_.front().num_posted == world_size_,
                 "collective {} is not complete", num_complete_);
  std::vector<Contribution> contributions = std::move(slots_.front().by_rank);
  slots_.pop_front();
  ++num_complete_;
  return contributions;
}

std::string CollectiveMatcher::mismatch_text() const {
  LOCKSTEP_CHECK(mismatch_.has_value(), "all ranks agree");
  return fmt::format("collective {}: rank {} issued {} but rank {} issued {}", mismatch_->first.seq,
                     mismatch_->first_rank, to_string(mismatch_->first), mismatch_->second_rank,
                     to_string(mismatch_->second));
}

const CollectiveInfo& CollectiveMatcher::pending(std::int64_t rank, std::int64_t seq) const {
  LOCKSTEP_CHECK(seq >= num_complete_ && seq < next_seq(rank) && !has_failed(seq),
                 "collective {} of rank {} is not pending", seq, rank);
  const Slot& slot = slots_[static_cast<std::size_t>(seq - num_complete_)];
  return slot.by_rank[static_cast<std::size_t>(rank)].info;
}

std::vector<std::int64_t> CollectiveMatcher::missing(std::int64_t seq) const {
  std::vector<std::int64_t> ranks;
  for (std::int64_t rank = 0; rank < world_size_; ++rank) {
    if (next_seq(rank) <= seq) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

bool CollectiveMatcher::agree(const CollectiveInfo& a, const CollectiveInfo& b) const {
  return a.kind == b.kind && a.op == b.op && a.numel == b.numel && a.dtype == b.dtype &&
         a.root == b.root && (!check_tags_ || a.tag == b.tag);
}

}  // namespace lockstep::sim
