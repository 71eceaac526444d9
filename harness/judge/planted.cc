// SPDX-License-Identifier: Apache-2.0
// Whether what a case plants came about: an entry that never does proves nothing.
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "harness/fault_kinds.h"
#include "harness/judge/judge.h"

namespace lockstep::harness {
namespace {

// An entry of [[at]] or [[fault]], as far as its place goes.
struct Planted {
  std::string name;  ///< "at.0 (raise)"
  const std::vector<std::int64_t>& ranks;
  const std::vector<std::int64_t>& steps;
  std::string site;
  std::optional<std::int64_t> bucket;
  std::int64_t from_ms = 0;
};

bool contains(const std::vector<std::int64_t>& list, std::size_t index) {
  return std::find(list.begin(), list.end(), static_cast<std::int64_t>(index)) != list.end();
}

// Of a process that ended nothing is known, besides that a fault may have ended it.
bool came_about(const Run& subject, const Planted& planted, std::size_t index,
                std::vector<std::int64_t> RankRun::*done) {
  return std::any_of(subject.ranks.begin(), subject.ranks.end(), [&](const RankRun& rank) {
    return covers(planted.ranks, rank.rank) &&
           (contains(rank.*done, index) || rank.ending == Ending::kCrashed);
  });
}

std::string place_of(const Planted& planted) {
  std::string place;
  if (!planted.ranks.empty()) {
    place += fmt::format(", rank {}", fmt::join(planted.ranks, ", "));
  }
  if (!planted.steps.empty()) {
    place += fmt::format(", step {}", fmt::join(planted.steps, ", "));
  }
  if (!planted.site.empty()) {
    place += fmt::format(", site {}", planted.site);
  }
  if (planted.bucket) {
    place += fmt::format(", bucket {}", *planted.bucket);
  }
  return place;
}

// What its ranks did issue for the site, in its steps.
std::string why_not_at_site(const Run& subject, const Planted& planted) {
  std::set<std::int64_t> buckets;
  bool any = false, matching = false;
  for (const RankRun& rank : subject.ranks) {
    for (const CollectiveRecord& record : rank.collectives) {
      if (!covers(planted.ranks, rank.rank) || record.site != planted.site ||
          (record.step >= 0 && !covers(planted.steps, record.step))) {
        continue;
      }
      any = true;
      buckets.insert(record.bucket);
      matching = matching || planted.bucket.value_or(record.bucket) == record.bucket;
    }
  }
  if (!any) {
    return "nothing was issued for that site there";
  }
  return matching ? "it changes nothing of what was issued there"
                  : fmt::format("what was issued there for that site is number {}",
                                fmt::join(buckets, ", "));
}

std::string why_not(const Run& subject, const Planted& planted) {
  if (!planted.site.empty()) {
    return why_not_at_site(subject, planted);
  }
  std::vector<std::string> ends;
  for (const RankRun& rank : subject.ranks) {
    if (covers(planted.ranks, rank.rank)) {
      ends.push_back(
          fmt::format("rank {} was last in step {} ({})", rank.rank, rank.at_step, rank.at_phase));
    }
  }
  return fmt::format("{}", fmt::join(ends, ", "));
}

}  // namespace

std::vector<std::string> complaints_about_planted(const Case& value, const Run& subject) {
  std::vector<std::string> complaints;
  const auto check = [&](const Planted& planted, std::size_t index,
                         std::vector<std::int64_t> RankRun::*done) {
    if (came_about(subject, planted, index, done)) {
      return;
    }
    complaints.push_back(fmt::format(
        "{}{} never came about: {}{}; give it a place that is come to, or leave it out",
        planted.name, place_of(planted), why_not(subject, planted),
        planted.from_ms > 0 ? fmt::format(", or not after {} ms", planted.from_ms) : ""));
  };
  for (std::size_t i = 0; i < value.at.size(); ++i) {
    const AtSpec& at = value.at[i];
    if (!at.is_routing()) {
      check({fmt::format("at.{}", i), at.ranks, at.steps, at.site, at.bucket, at.from_ms}, i,
            &RankRun::events_done);
    }
  }
  for (std::size_t i = 0; i < value.faults.size(); ++i) {
    const FaultSpec& fault = value.faults[i];
    const FaultKind* const kind = find_fault_kind(fault.kind);
    const bool at_construction = (kind != nullptr && !kind->has_steps()) ||
                                 (fault.kind == "replaced_parameter" && fault.steps.empty());
    if (!at_construction) {
      check({fmt::format("fault.{} ({})", i, fault.kind), fault.ranks, fault.steps, site_of(fault),
             fault.bucket, fault.from_ms},
            i, &RankRun::faults_done);
    }
  }
  return complaints;
}

}  // namespace lockstep::harness
