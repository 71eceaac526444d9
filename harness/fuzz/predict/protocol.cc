// SPDX-License-Identifier: Apache-2.0
// Pairs what ranks issue.
#include "harness/fuzz/predict/protocol.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace lockstep::harness::fuzz {

bool operator==(const Issued& a, const Issued& b) {
  const auto all = [](const Issued& i) {
    return std::tie(i.collective, i.site, i.step, i.index, i.variant);
  };
  return all(a) == all(b);
}

bool Ends::all_well() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankEnd& rank) {
    return rank.ending == "finished" || rank.ending == "left";
  });
}

namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

// One rank on its way.
struct Walk {
  const std::vector<Act>* acts = nullptr;
  std::size_t at = 0;
  std::vector<Issued> issued;
  bool has_ended = false, is_dead = false, is_stopped = false;
  std::int64_t gave_up_from = kNever;  // seq

  bool is_waiting() const {
    return !has_ended && !is_stopped && at < acts->size() && (*acts)[at].what == Act::What::kWait;
  }
  const Act& act() const { return (*acts)[at]; }
};

class Meeting {
 public:
  Meeting(const std::vector<std::vector<Act>>& ranks, std::int64_t timeout_ms)
      : timeout_ms_(timeout_ms) {
    for (const std::vector<Act>& acts : ranks) {
      walks_.emplace_back();
      walks_.back().acts = &acts;
    }
    ends_.ranks.resize(ranks.size());
  }

  Ends meet() {
    do {
      while (advance_all()) {
      }
    } while (run_out_of_time());
    ends_.wrong_pairing = first_mismatch() != kNever;
    return std::move(ends_);
  }

 private:
  bool advance_all() {
    bool any = false;
    for (std::size_t rank = 0; rank < walks_.size(); ++rank) {
      while (advance(rank)) {
        any = true;
      }
    }
    return any;
  }

  void end(std::size_t rank, const std::string& ending, const std::string& error,
           std::int64_t step) {
    walks_[rank].has_ended = true;
    ends_.ranks[rank].ending = ending;
    ends_.ranks[rank].error = error;
    ends_.ranks[rank].step = step;
  }

  // The lowest seq at which two ranks differ.
  std::int64_t first_mismatch() const {
    std::size_t longest = 0;
    for (const Walk& walk : walks_) {
      longest = std::max(longest, walk.issued.size());
    }
    for (std::size_t seq = 0; seq < longest; ++seq) {
      const Issued* first = nullptr;
      for (const Walk& walk : walks_) {
        if (seq >= walk.issued.size()) {
          continue;
        }
        if (first != nullptr && !(*first == walk.issued[seq])) {
          return static_cast<std::int64_t>(seq);
        }
        first = &walk.issued[seq];
      }
    }
    return kNever;
  }

  template <typename Holds>
  bool any(const Holds& holds) const {
    return std::any_of(walks_.begin(), walks_.end(), holds);
  }

  // Returns false if the rank has ended, or waits.
  bool advance(std::size_t rank) {
    Walk& walk = walks_[rank];
    if (walk.has_ended || walk.is_stopped) {
      return false;
    }
    if (walk.at == walk.acts->size()) {
      end(rank, "finished", "", 0);
      return true;
    }
    const Act& act = walk.act();
    switch (act.what) {
      case Act::What::kIssue:
        walk.issued.push_back(act.issued);
        break;
      case Act::What::kWait:
        return advance_wait(rank, act);
      case Act::What::kFail:
        end(rank, "failed", act.error, act.step);
        break;
      case Act::What::kStand:
        end(rank, "waiting", act.seq < 0 ? "stalled" : "", act.step);
        if (act.seq >= 0) {
          ends_.ranks[rank].waiting = walk.issued[static_cast<std::size_t>(act.seq)];
        }
        break;
      case Act::What::kLeave:
        end(rank, "left", "", act.step);
        break;
      case Act::What::kDie:
        walk.is_dead = true;
        end(rank, "crashed", "", act.step);
        break;
      case Act::What::kStop:
        walk.is_stopped = walks_.size() > 1;
        break;
    }
    ++walk.at;
    return true;
  }

  bool advance_wait(std::size_t rank, const Act& act) {
    const auto lacks = [&](const Walk& walk) {
      return static_cast<std::int64_t>(walk.issued.size()) <= act.seq;
    };
    if (first_mismatch() <= act.seq) {
      end(rank, "failed", "desync", act.step);
    } else if (any([&](const Walk& walk) { return walk.gave_up_from <= act.seq; })) {
      if (any(lacks)) {
        return false;  // until its own limit
      }
      end(rank, "failed", "peer_lost", act.step);
    } else if (!any(lacks)) {
      ++walks_[rank].at;
    } else if (any([&](const Walk& walk) { return walk.is_dead && lacks(walk); })) {
      end(rank, "failed", "peer_lost", act.step);
    } else {
      return false;
    }
    return true;
  }

  // Those that wait have waited long enough, all at once; those that were stopped go on then.
  // Returns false where nobody goes on.
  bool run_out_of_time() {
    for (std::size_t rank = 0; rank < walks_.size(); ++rank) {
      Walk& walk = walks_[rank];
      if (!walk.is_waiting()) {
        continue;
      }
      if (timeout_ms_ == 0) {
        end(rank, "waiting", "", walk.act().step);
        ends_.ranks[rank].waiting = walk.issued[static_cast<std::size_t>(walk.act().seq)];
      } else {
        walk.gave_up_from = walk.act().seq;
        end(rank, "failed", "timed_out", walk.act().step);
      }
    }
    bool goes_on = false;
    for (Walk& walk : walks_) {
      goes_on = goes_on || walk.is_stopped;
      walk.is_stopped = false;
    }
    return goes_on;
  }

  std::int64_t timeout_ms_;
  std::vector<Walk> walks_;
  Ends ends_;
};

}  // namespace

Ends meet(const std::vector<std::vector<Act>>& ranks, std::int64_t timeout_ms) {
  return Meeting(ranks, timeout_ms).meet();
}

std::optional<Ends> ends_of(const Case& value) {
  std::vector<std::vector<Act>> ranks;
  std::vector<std::vector<std::string>> never_ready;
  for (std::int64_t rank = 0; rank < value.world.ranks; ++rank) {
    std::optional<RankActs> acts = acts_of(value, rank);
    if (!acts) {
      return std::nullopt;
    }
    ranks.push_back(std::move(acts->acts));
    never_ready.push_back(std::move(acts->never_ready));
  }
  Ends ends = meet(ranks, value.world.timeout_ms);
  for (std::size_t rank = 0; rank < ends.ranks.size(); ++rank) {
    ends.ranks[rank].never_ready = std::move(never_ready[rank]);
  }
  return ends;
}

}  // namespace lockstep::harness::fuzz
