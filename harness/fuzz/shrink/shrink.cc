// SPDX-License-Identifier: Apache-2.0
// Greedy search for a smaller case that shows the same.
#include "harness/fuzz/shrink/shrink.h"

#include <xxhash.h>

#include <algorithm>
#include <set>
#include <utility>

#include "core/check.h"
#include "harness/fuzz/shrink/finding.h"
#include "harness/fuzz/shrink/smaller.h"
#include "harness/judge/judge_schedules.h"
#include "harness/scenario.h"
#include "harness/wall_clock.h"

namespace lockstep::harness::fuzz {

namespace {

constexpr std::size_t kBatch = 16;
/// A change of the script changes what a drawn schedule does to it, so that several are drawn.
constexpr std::int64_t kRunsWhileShrinking = 16;

class Search {
 public:
  Search(const Case& found, const CaseResult& result, const JudgeMany& judge,
         const ShrinkLimits& limits)
      : judge_(judge),
        limits_(limits),
        kind_(finding_kind(result)),
        end_seconds_(wall_seconds() + limits.seconds_max) {
    LOCKSTEP_USAGE(!kind_.empty(), "a case that is as expected shows nothing to shrink it by");
    best_.value = found;
    best_.result = result;
    is_new(found);
  }

  Shrunk run() {
    const std::vector<Reduction>& all = reductions();
    improve(smaller(best_.value, all.front()));
    draw_more_schedules();
    do {
      // Goes on with a reduction as long as it succeeds, and ends when none does any more.
      for (std::size_t at = 0, num_failed = 0; num_failed < all.size() && !is_at_limit();) {
        if (improve(smaller(best_.value, all[at]))) {
          num_failed = 0;
        } else {
          ++num_failed;
          at = (at + 1) % all.size();
        }
      }
    } while (!is_at_limit() && improve(replayed()));
    best_.is_minimal = !is_at_limit();
    return std::move(best_);
  }

 private:
  bool is_at_limit() const {
    return best_.num_judged >= limits_.judged_max || wall_seconds() >= end_seconds_;
  }

  bool is_new(const Case& value) {
    const std::string text = print_case(value);
    return judged_.insert(XXH3_64bits(text.data(), text.size())).second;
  }

  /// The first of `candidates` that shows the same becomes the best.
  bool improve(const std::vector<Case>& candidates) {
    std::vector<Case> batch;
    for (std::size_t i = 0; i < candidates.size() && !is_at_limit(); ++i) {
      if (is_new(candidates[i])) batch.push_back(candidates[i]);
      const std::size_t room = static_cast<std::size_t>(limits_.judged_max - best_.num_judged);
      const bool is_full = batch.size() == std::min(kBatch, room);
      if (!batch.empty() && (is_full || i + 1 == candidates.size())) {
        if (take_first_of(batch)) return true;
        batch.clear();
      }
    }
    return false;
  }

  // What was judged behind the first that shows the same depends on how many are judged at a time,
  // and is passed over: so the end does not.
  bool take_first_of(const std::vector<Case>& batch) {
    const auto shows_the_same = [&](const CaseResult& result) {
      return finding_kind(result) == kind_;
    };
    std::vector<CaseResult> results = judge_(batch, shows_the_same);
    for (std::size_t i = 0; i < std::min(batch.size(), results.size()); ++i) {
      ++best_.num_judged;
      if (!shows_the_same(results[i])) continue;
      ++best_.num_steps;
      best_.value = batch[i];
      best_.result = std::move(results[i]);
      return true;
    }
    return false;
  }

  void draw_more_schedules() {
    const ScheduleSpec& schedule = best_.value.schedule;
    const bool is_drawn = schedule.policy == "random" || schedule.policy == "pct";
    if (!is_drawn || schedule.runs >= kRunsWhileShrinking) return;
    Case more = best_.value;
    more.schedule.runs = kRunsWhileShrinking;
    if (improve({more})) --best_.num_steps;  // it is not smaller
  }

  /// The best case on the very schedule on which it failed.
  std::vector<Case> replayed() const {
    if (best_.value.schedule.policy == "round_robin" || !best_.result.of_one_schedule) return {};
    return {on_schedule(best_.value, best_.result.schedule)};
  }

  const JudgeMany& judge_;
  const ShrinkLimits limits_;
  const std::string kind_;
  const double end_seconds_;
  std::set<std::uint64_t> judged_;  ///< hashes of their texts
  Shrunk best_;
};

}  // namespace

Shrunk shrink(const Case& found, const CaseResult& result, const JudgeMany& judge,
              const ShrinkLimits& limits) {
  return Search(found, result, judge, limits).run();
}

}  // namespace lockstep::harness::fuzz
