// SPDX-License-Identifier: Apache-2.0
// Two runs of one case, side by side.
#include "harness/judge/peer_comparison.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/check.h"
#include "harness/judge/compare.h"
#include "harness/program.h"
#include "harness/scenario.h"

namespace lockstep::harness {
namespace {

std::string ending_text(const RankRun& rank) {
  if (rank.waiting) {
    const WaitingIn& in = *rank.waiting;
    return fmt::format("waits in {} ({} {}, step {}), {} x {}", in.collective, in.site, in.bucket,
                       in.step, in.numel, in.dtype);
  }
  if (rank.ending == Ending::kFailed) {
    return fmt::format("fails with {} in {} of step {}", rank.error_kind, rank.at_phase,
                       rank.at_step);
  }
  return fmt::format("{} with {} steps", to_string(rank.ending), rank.steps.size());
}

std::string text(const CollectiveRecord& record) {
  return fmt::format("{} of {} x {} ({}, step {})", record.collective, record.numel, record.dtype,
                     record.site, record.step);
}

bool same(const CollectiveRecord& a, const CollectiveRecord& b) {
  return a.collective == b.collective && a.numel == b.numel && a.dtype == b.dtype;
}

// Without those in which ranks tell each other about the model, or in join about their iteration:
// ours say more.
std::vector<CollectiveRecord> of_training(const RankRun& rank) {
  static const std::vector<std::string> kTalk = {"param_count", "param_shapes", "join_active",
                                                 "join_early_end", "join_plan"};
  std::vector<CollectiveRecord> kept;
  std::copy_if(rank.collectives.begin(), rank.collectives.end(), std::back_inserter(kept),
               [](const CollectiveRecord& record) {
                 return std::find(kTalk.begin(), kTalk.end(), record.site) == kTalk.end();
               });
  return kept;
}

bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
}

class RankComparison {
 public:
  RankComparison(const RankRun& ours, const RankRun& theirs, const std::string& peer)
      : ours_(ours), theirs_(theirs), peer_(peer) {
    compare_endings();
    compare_numbers();
    compare_collectives();
  }

  std::vector<std::string> take() { return std::move(found_); }

 private:
  void differ(const std::string& where, const std::string& ours, const std::string& theirs) {
    found_.push_back(
        fmt::format("rank {}{}: ddp {}, {} {}", ours_.rank, where, ours, peer_, theirs));
  }

  void compare_endings() {
    const std::string ours = ending_text(ours_);
    const std::string theirs = ending_text(theirs_);
    if (ours != theirs) {
      differ("", ours, theirs);
    }
  }

  // Up to the first number that differs.
  void compare_numbers() {
    if (differs(ours_.initial_parameters, theirs_.initial_parameters, "construction",
                "parameter") ||
        differs(ours_.initial_buffers, theirs_.initial_buffers, "construction", "buffer")) {
      return;
    }
    const std::size_t num_steps = std::min(ours_.steps.size(), theirs_.steps.size());
    for (std::size_t at = 0; at < num_steps; ++at) {
      const StepRecord& ours = ours_.steps[at];
      const StepRecord& theirs = theirs_.steps[at];
      const std::string step = fmt::format("step {}", ours.step);
      if (ours.step != theirs.step) {
        differ("", "completed " + step, fmt::format("step {}", theirs.step));
        return;
      }
      if (!same_bits(ours.losses, theirs.losses)) {
        differ(", " + step, fmt::format("has losses {}", fmt::join(ours.losses, " ")),
               fmt::format("{}", fmt::join(theirs.losses, " ")));
        return;
      }
      if (differs(ours.gradients, theirs.gradients, step, "gradient") ||
          differs(ours.parameters, theirs.parameters, step, "parameter") ||
          differs(ours.buffers, theirs.buffers, step, "buffer") ||
          differs(ours.optimizer, theirs.optimizer, step, "optimizer state")) {
        return;
      }
    }
    if (!differs(ours_.final_parameters, theirs_.final_parameters, "the end of join",
                 "parameter")) {
      differs(ours_.final_buffers, theirs_.final_buffers, "the end of join", "buffer");
    }
  }

  bool differs(const Snapshot& ours, const Snapshot& theirs, const std::string& where,
               const char* what) {
    const std::optional<Divergence> found = first_difference(ours, theirs, Equality::kBits);
    if (found) {
      differ(fmt::format(", {}, {} {}{}", where, what, found->tensor,
                         found->element >= 0 ? fmt::format("[{}]", found->element) : ""),
             fmt::format("has {} {}", found->expected, found->expected_bits),
             fmt::format("{} {}", found->actual, found->actual_bits));
    }
    return found.has_value();
  }

  void compare_collectives() {
    const auto ours = of_training(ours_);
    const auto theirs = of_training(theirs_);
    const std::size_t length = std::max(ours.size(), theirs.size());
    for (std::size_t at = 0; at < length; ++at) {
      if (at >= ours.size() || at >= theirs.size() || !same(ours[at], theirs[at])) {
        differ(fmt::format(", collective {} of training", at),
               at < ours.size() ? "issues " + text(ours[at]) : "issues none",
               at < theirs.size() ? text(theirs[at]) : "none");
        return;
      }
    }
  }

  const RankRun& ours_;
  const RankRun& theirs_;
  const std::string& peer_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> differences(const Run& ours, const Run& theirs, const std::string& peer) {
  LOCKSTEP_CHECK(ours.ranks.size() == theirs.ranks.size(), "runs of {} and {} ranks",
                 ours.ranks.size(), theirs.ranks.size());
  std::vector<std::string> found;
  for (std::size_t rank = 0; rank < ours.ranks.size(); ++rank) {
    for (std::string& text : RankComparison(ours.ranks[rank], theirs.ranks[rank], peer).take()) {
      found.push_back(std::move(text));
    }
  }
  return found;
}

PeerComparison compare_with_torch(const Case& value, const Run& subject, Executor& executor) {
  Case of_peer = value;
  of_peer.ddp.sync = "torch";
  PeerComparison comparison;
  comparison.sync = of_peer.ddp.sync;
  comparison.differences =
      differences(subject, executor.execute(compile_subject(of_peer)), comparison.sync);
  const ExpectSpec* known = known_difference(value);
  comparison.reason = known ? known->reason : "";
  return comparison;
}

std::vector<std::string> complaints_about(const PeerComparison& comparison) {
  if (comparison.reason.empty()) {
    return comparison.differences;
  }
  if (comparison.differences.empty()) {
    return {fmt::format("{} did the same, though [expect.{}] says that it differs: {}",
                        comparison.sync, comparison.sync, comparison.reason)};
  }
  return {};
}

}  // namespace lockstep::harness
