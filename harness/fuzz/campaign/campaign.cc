// SPDX-License-Identifier: Apache-2.0
// Invents cases, has them judged, and keeps what is found.
#include "harness/fuzz/campaign/campaign.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/rng.h"
#include "harness/fuzz/campaign/corpus.h"
#include "harness/fuzz/campaign/journal.h"
#include "harness/fuzz/draw/draw.h"
#include "harness/fuzz/predict/predict.h"
#include "harness/fuzz/shrink/finding.h"
#include "harness/report/text_case.h"
#include "harness/scenario.h"
#include "harness/wall_clock.h"

namespace lockstep::harness::fuzz {

namespace {

/// A case that has been given to the suite and whose result has not been passed on.
struct Given {
  NamedCase named;
  Origin origin;
  bool is_leftover = false;
};

/// Something found that waits for being shrunk.
struct Raw {
  Given given;
  CaseResult result;
  std::string kind;
};

void add_counts(SuiteSummary& sum, const SuiteSummary& part) {
  sum.jobs = part.jobs;
  sum.cores = part.cores;
  sum.seconds += part.seconds;
}

class Campaign final : public CaseSource {
 public:
  Campaign(const CampaignOptions& options, const SuiteOptions& suite, const JudgeFunction& judge,
           const CampaignEvents& events, PairTable* pairs)
      : options_(options),
        events_(events),
        pairs_(pairs),
        jobs_(suite.jobs),
        suite_(suite, judge),
        running_(options.folder),
        journal_(options.json_lines) {
    if (options.toward) steering_.emplace(*options.toward);
  }

  CampaignSummary run() {
    start_s_ = wall_seconds();
    while (!is_over()) {
      add_counts(is_replaying_ ? summary_.replays : summary_.cases,
                 suite_run(*this, suite_events()));
      if (waiting_.empty()) {
        if (!is_replaying_) break;
        is_replaying_ = false;
        continue;
      }
      for (; !waiting_.empty(); waiting_.pop_front()) keep(waiting_.front());
    }
    if (steering_) summary_.best = steering_->best();
    return std::move(summary_);
  }

  /// Nothing while a finding waits for being shrunk.
  std::optional<NamedCase> next() override {
    if (!waiting_.empty() || is_over()) return std::nullopt;
    return is_replaying_ ? next_replay() : next_drawn();
  }

 private:
  bool is_over() const { return summary_.signal != 0 || has_found_enough(); }

  std::optional<NamedCase> next_replay() {
    if (num_replayed_ == options_.replays.size()) return std::nullopt;
    const Replay& replay = options_.replays[num_replayed_++];
    Origin origin;
    origin.file = replay.named.file;
    given_.push_back({replay.named, origin, replay.is_leftover});
    return replay.named;
  }

  std::optional<NamedCase> next_drawn() {
    const std::uint64_t index = next_index_ + options_.shard - 1;
    if (options_.num_cases && index >= *options_.num_cases) return std::nullopt;
    if (options_.seconds && wall_seconds() - start_s_ >= *options_.seconds) return std::nullopt;
    if (steering_ && num_drawn_ % Steering::kGeneration == 0) {
      // The next generation descends from all that came before.
      if (!given_.empty()) return std::nullopt;
      steering_->begin_generation();
    }
    next_index_ += options_.num_shards;
    ++num_drawn_;
    Origin origin;
    origin.index = index;
    origin.seed = options_.seed;
    given_.push_back(
        {{"", fmt::format("seed={},case={}", options_.seed, index), drawn(index)}, origin, false});
    return given_.back().named;
  }

  Case drawn(std::uint64_t index) const {
    Space space = options_.space;
    if (const Case* parent = steering_ ? steering_->parent(options_.seed, index) : nullptr) {
      space.mode = has_mistake(*parent) ? Mode::kBroken : Mode::kValid;
      return redraw(*parent, space, options_.seed, index);
    }
    if (!options_.only_mode) {
      constexpr std::int64_t kStreamOfModes = 0;
      CounterRng rng(options_.seed, RngStream::kFuzz, kStreamOfModes,
                     static_cast<std::int64_t>(index));
      space.mode = rng.below(3) == 0 ? Mode::kBroken : Mode::kValid;
    }
    return draw_script(space, options_.seed, index);
  }

  SuiteEvents suite_events() {
    SuiteEvents events;
    events.case_done = [this](const CaseResult& result) { take(result); };
    events.progress = [this](std::int64_t) {
      if (events_.progress && !is_replaying_) events_.progress(++num_done_);
    };
    if (!is_replaying_ && options_.findings_max == 1) {
      events.ends_at = [](const CaseResult& result) { return !finding_kind(result).empty(); };
    }
    return events;
  }

  SuiteSummary suite_run(CaseSource& source, SuiteEvents events) {
    events.case_begins = [this](std::int64_t slot, const CaseText& text) {
      running_.begins(slot, text);
    };
    SuiteSummary summary = suite_.run(source, events);
    summary_.signal = summary.signal;
    return summary;
  }

  /// A result, in the order in which cases were given.
  void take(const CaseResult& result) {
    Given given = std::move(given_.front());
    given_.pop_front();
    // What ran beside the last finding counts no more, or it would depend on the jobs.
    if (has_found_enough()) return;
    const std::string kind = finding_kind(result);
    const Case& value = given.named.value;
    const bool is_drawn = given.origin.index.has_value();
    tally(result, is_drawn ? summary_.cases : summary_.replays);
    if (is_drawn) {
      summary_.num_indices = *given.origin.index + 1;
      ++(has_mistake(value) ? summary_.num_broken : summary_.num_valid);
      if (pairs_ != nullptr) pairs_->add(value);
      if (steering_) steering_->add(fmt::format("case {}", *given.origin.index), value, result);
    }
    journal_.add(given.origin, value, result, kind);
    if (kind.empty()) {
      if (given.is_leftover) unlink(given.origin.file.c_str());
      return;
    }
    ++summary_.findings[kind];
    const bool is_new = kinds_.insert(kind).second;
    if (is_new || options_.keep_all || !is_drawn) {
      waiting_.push_back({std::move(given), result, kind});
    }
  }

  bool has_found_enough() const {
    return !is_replaying_ && static_cast<std::int64_t>(kinds_.size()) >= options_.findings_max;
  }

  /// Shrinks a finding, writes it and passes it on. A file of the corpus stays as it is.
  void keep(const Raw& raw) {
    const Given& given = raw.given;
    const bool is_drawn = given.origin.index.has_value();
    Found found;
    found.kind = raw.kind;
    found.name = is_drawn ? fmt::format("case {}", *given.origin.index)
                          : case_label(given.named.file, given.named.name);
    found.shrunk.value = given.named.value;
    found.shrunk.result = raw.result;
    found.shrunk.is_minimal = false;
    if (events_.found) events_.found(found);
    if (!is_drawn && !given.is_leftover) {
      found.path = given.origin.file;
    } else {
      try {
        shrink_and_write(raw, found);
      } catch (const UsageError&) {
        if (events_.shrunk) events_.shrunk(found);  // It is seen, at least.
        throw;
      }
    }
    if (given.is_leftover) unlink(given.origin.file.c_str());
    if (events_.shrunk) events_.shrunk(found);
  }

  /// Shrinking takes long, and whatever ends it the finding must not be lost: until what comes of
  /// it is written, it is on disk like a case in progress.
  void shrink_and_write(const Raw& raw, Found& found) {
    const std::optional<std::uint64_t>& index = raw.given.origin.index;
    if (index) running_.begins(jobs_, {"", "", print_case(found.shrunk.value)});
    if (options_.shrinks && summary_.signal == 0) {
      found.shrunk =
          shrink(found.shrunk.value, raw.result, judge_many(found.kind), options_.shrink_limits);
      if (summary_.signal != 0) found.shrunk.is_minimal = false;
    }
    const std::string origin = index ? fmt::format("case {} of seed {}", *index, options_.seed)
                                     : "left behind by a campaign that was killed";
    found.path = write_finding(options_.folder, found.kind, {found.kind + ": " + origin},
                               print_case(found.shrunk.value));
    found.shrunk.result.file = found.path;
    found.shrunk.result.name.clear();
    running_.ends(jobs_);
  }

  /// Judges in the same processes, for what shows `kind` (see property_of). After a signal nothing
  /// shows anything.
  JudgeMany judge_many(const std::string& kind) {
    return [this, kind](const std::vector<Case>& cases,
                        const std::function<bool(const CaseResult&)>& stop) {
      std::vector<NamedCase> named;
      for (const Case& value : cases) named.push_back({"", kind, value});
      std::vector<CaseResult> results;
      SuiteEvents events;
      events.case_done = [&](const CaseResult& result) { results.push_back(result); };
      events.ends_at = stop;
      ListedCases source(named);
      if (suite_run(source, events).signal != 0) {
        CaseResult nothing;
        nothing.as_expected = true;
        results.resize(cases.size(), nothing);
      }
      return results;
    };
  }

  const CampaignOptions& options_;
  const CampaignEvents& events_;
  PairTable* const pairs_;  ///< may be null; outlives this
  const std::int64_t jobs_;
  Suite suite_;
  RunningInputs running_;
  Journal journal_;
  std::optional<Steering> steering_;
  CampaignSummary summary_;
  std::deque<Given> given_;
  std::deque<Raw> waiting_;
  std::set<std::string> kinds_;  ///< found so far
  bool is_replaying_ = true;
  std::size_t num_replayed_ = 0;
  std::uint64_t next_index_ = 0, num_drawn_ = 0;
  std::int64_t num_done_ = 0;
  double start_s_ = 0.0;
};

}  // namespace

CampaignSummary run_campaign(const CampaignOptions& options, const SuiteOptions& suite,
                             const JudgeFunction& judge, const CampaignEvents& events,
                             PairTable* pairs) {
  return Campaign(options, suite, judge, events, pairs).run();
}

}  // namespace lockstep::harness::fuzz
