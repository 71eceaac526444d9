// SPDX-License-Identifier: Apache-2.0
// Invents cases, has them judged, and keeps what is found.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "harness/fuzz/campaign/steering.h"
#include "harness/fuzz/draw/space.h"
#include "harness/fuzz/pairs/pair_table.h"
#include "harness/fuzz/shrink/shrink.h"
#include "harness/suite.h"

namespace lockstep::harness::fuzz {

/// A case that is judged before anything is drawn.
struct Replay {
  NamedCase named;
  bool is_leftover = false;  ///< its file goes away once it was judged and what it shows is kept
};

struct CampaignOptions {
  Space space;             ///< `mode` counts if `only_mode`
  bool only_mode = false;  ///< false: about two valid scripts on one broken one
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> num_cases;   ///< scripts 0 .. num_cases - 1 of the seed
  std::optional<double> seconds;            ///< no case begins later
  std::uint64_t shard = 1, num_shards = 1;  ///< every num_shards-th script, from shard - 1 on
  std::string folder;                       ///< of findings and inputs of cases in progress
  std::vector<Replay> replays;
  std::int64_t findings_max = 1;  ///< ends when so many kinds were found
  bool keep_all = false;          ///< shrinks and keeps every finding, not one of each kind
  bool shrinks = true;
  ShrinkLimits shrink_limits;
  std::optional<Toward> toward;
  std::string json_lines;  ///< path; empty: none
};

/// What was found, shrunk if that was asked for, and where it was written.
struct Found {
  std::string kind;
  std::string name;  ///< "case 17", or the label of a replayed case
  Shrunk shrunk;
  std::string path;  ///< empty: it could not be written
};

/// What came of a campaign.
struct CampaignSummary {
  SuiteSummary cases;                            ///< those that were drawn
  SuiteSummary replays;                          ///< those that were not
  std::int64_t num_valid = 0, num_broken = 0;    ///< drawn
  std::map<std::string, std::int64_t> findings;  ///< by kind, replayed ones included
  std::uint64_t num_indices = 0;  ///< scripts 0 .. num_indices - 1, of which the shard has its part
  std::vector<Steering::Scored> best;  ///< with `toward`
  int signal = 0;
};

/// All may be empty.
struct CampaignEvents {
  std::function<void(std::int64_t num_done)> progress;  ///< of drawn cases
  /// In order: a finding before it is shrunk, and after that.
  std::function<void(const Found&)> found;
  std::function<void(const Found&)> shrunk;
};

/// Replays first, then scripts in the order of their numbers. What is found and counted depends on
/// the options alone, not on the number of jobs, unless time or a signal ends it.
/// Every script is in `options.folder` before it runs; see RunningInputs.
/// Processes: see Suite. Errors: UsageError for what cannot be written; InvariantError.
CampaignSummary run_campaign(const CampaignOptions& options, const SuiteOptions& suite,
                             const JudgeFunction& judge, const CampaignEvents& events,
                             PairTable* pairs);

}  // namespace lockstep::harness::fuzz
