// SPDX-License-Identifier: Apache-2.0
// Step-by-step comparison of a run with its references.
#include "harness/judge/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>

#include "harness/judge/compare.h"
#include "harness/snapshot.h"

namespace lockstep::harness {
namespace {

using SnapshotOf = const Snapshot& (*)(const StepRecord&);

struct PhaseOf {
  const char* name;
  SnapshotOf get;
};

const PhaseOf kGradient{"gradient",
                        [](const StepRecord& r) -> const Snapshot& { return r.gradients; }};
const PhaseOf kParameter{"parameter",
                         [](const StepRecord& r) -> const Snapshot& { return r.parameters; }};
const PhaseOf kOptimizer{"optimizer",
                         [](const StepRecord& r) -> const Snapshot& { return r.optimizer; }};

class Comparer {
 public:
  Comparer(const Run& subject, const References& references)
      : subject_(subject), references_(references) {}

  Comparison compare() {
    if (!compare_initial()) {
      for (const std::int64_t step : all_steps()) {
        step_ = step;
        if (!found_) {
          find_records();
          compare_step_sets();
        }
        if (!found_ && all_completed()) {
          compare_step();
        }
      }
      compare_final();
    }
    return {found_, worst_};
  }

 private:
  struct RankRecord {
    std::int64_t rank;
    const StepRecord* record;
  };
  struct RankSnapshot {
    std::int64_t rank;
    const Snapshot* snapshot;
  };

  std::int64_t num_steps(std::int64_t rank) const {
    return references_.num_steps.empty() ? std::numeric_limits<std::int64_t>::max()
                                         : references_.num_steps[static_cast<std::size_t>(rank)];
  }

  // The first rank of those that have inputs for the most steps.
  const RankRun& longest() const {
    return *std::max_element(subject_.ranks.begin(), subject_.ranks.end(),
                             [this](const RankRun& a, const RankRun& b) {
                               return num_steps(a.rank) < num_steps(b.rank);
                             });
  }

  // That some rank or the replay completed.
  std::set<std::int64_t> all_steps() const {
    std::set<std::int64_t> steps;
    const auto add = [&steps](const std::vector<RankRun>& ranks) {
      for (const RankRun& rank : ranks) {
        for (const StepRecord& record : rank.steps) {
          steps.insert(record.step);
        }
      }
    };
    add(subject_.ranks);
    if (references_.replay != nullptr) {
      add(references_.replay->ranks);
    }
    return steps;
  }

  void find_records() {
    records_.clear();
    for (const RankRun& rank : subject_.ranks) {
      if (num_steps(rank.rank) > step_) {
        records_.push_back({rank.rank, find_step(rank, step_)});
      }
    }
  }

  bool all_completed() const {
    return std::all_of(records_.begin(), records_.end(),
                       [](const RankRecord& of_rank) { return of_rank.record != nullptr; });
  }

  std::vector<RankSnapshot> of_all(Snapshot RankRun::*member) const {
    std::vector<RankSnapshot> list;
    for (const RankRun& rank : subject_.ranks) {
      list.push_back({rank.rank, &(rank.*member)});
    }
    return list;
  }

  bool compare_initial() {
    step_ = -1;
    const auto& expected = references_.replay != nullptr
                               ? references_.replay->ranks.front().initial_parameters
                               : subject_.ranks.front().initial_parameters;
    if (references_.ranks || references_.replay != nullptr) {
      compare_all_ranks("init", expected, of_all(&RankRun::initial_parameters));
    }
    // A broadcast at construction gives all ranks rank 0's buffers, too.
    if (!found_ && references_.replay != nullptr) {
      compare_all_ranks("init", references_.replay->ranks.front().initial_buffers,
                        of_all(&RankRun::initial_buffers));
    }
    return found_.has_value();
  }

  void compare_step() {
    if (references_.replay != nullptr) {
      compare_losses();
    }
    compare_phase(kGradient);
    compare_bound("gradient", kGradient);
    compare_serial(kGradient);
    if (references_.replay != nullptr) {
      compare_buffers();
    }
    compare_phase(kParameter);
    compare_bound("parameter", kParameter);
    compare_serial(kParameter);
    compare_phase(kOptimizer);
  }

  const StepRecord* replay_step(std::int64_t rank) const {
    return find_step(references_.replay->ranks[static_cast<std::size_t>(rank)], step_);
  }

  // What join leaves: one state on all ranks. Buffers that are not synchronised stay each rank's.
  void compare_final() {
    const bool all_ended =
        std::all_of(subject_.ranks.begin(), subject_.ranks.end(),
                    [](const RankRun& rank) { return rank.final_parameters.slots != nullptr; });
    if (found_ || !all_ended || (!references_.ranks && references_.replay == nullptr)) {
      return;
    }
    step_ = longest().steps.empty() ? -1 : longest().steps.back().step;
    const Run* replay = references_.replay;
    compare_all_ranks("final",
                      (replay != nullptr ? *replay : subject_).ranks.front().final_parameters,
                      of_all(&RankRun::final_parameters));
    for (std::size_t rank = 0; replay != nullptr && rank < subject_.ranks.size(); ++rank) {
      compare_buffers_of(static_cast<std::int64_t>(rank), "final",
                         replay->ranks[rank].final_buffers, subject_.ranks[rank].final_buffers);
    }
  }

  // A rank that went past a step which others, or the replay, completed is not in step, and
  // everything later follows from that. All of them may leave the loop at a step.
  void compare_step_sets() {
    if (!references_.ranks && references_.replay == nullptr) {
      return;
    }
    const bool some_completed =
        std::any_of(records_.begin(), records_.end(),
                    [](const RankRecord& of_rank) { return of_rank.record != nullptr; });
    std::vector<std::int64_t> skipped;
    for (const RankRecord& of_rank : records_) {
      const RankRun& rank = subject_.ranks[static_cast<std::size_t>(of_rank.rank)];
      const bool went_past = rank.at_step > step_ || rank.ending == Ending::kFinished ||
                             (rank.ending == Ending::kLeft && some_completed);
      if (of_rank.record == nullptr && went_past) {
        skipped.push_back(of_rank.rank);
      }
    }
    if (skipped.empty()) {
      return;
    }
    Divergence divergence;
    divergence.tensor = "(steps completed)";
    divergence.expected = fmt::format("step {}", step_);
    divergence.actual = "skipped";
    accuse(references_.ranks ? "ranks" : "replay", "parameter", std::move(skipped), divergence);
  }

  void compare_losses() {
    for (const RankRecord& of_rank : records_) {
      const StepRecord& record = *of_rank.record;
      const StepRecord* replay = replay_step(of_rank.rank);
      if (replay == nullptr) {
        continue;
      }
      for (std::size_t m = 0; m < record.losses.size() && m < replay->losses.size(); ++m) {
        if (std::memcmp(&record.losses[m], &replay->losses[m], sizeof(double)) == 0) {
          continue;
        }
        Divergence divergence;
        divergence.tensor = fmt::format("loss of micro-batch {}", m);
        divergence.element = 0;
        divergence.expected = fmt::format("{:.9g}", replay->losses[m]);
        divergence.actual = fmt::format("{:.9g}", record.losses[m]);
        divergence.ulp = ulp_distance(static_cast<float>(replay->losses[m]),
                                      static_cast<float>(record.losses[m]));
        divergence.num_elements_differ = 1;
        accuse("replay", "forward", {of_rank.rank}, divergence);
        return;
      }
    }
  }

  void compare_phase(const PhaseOf& phase) {
    if (found_ || (!references_.ranks && references_.replay == nullptr)) {
      return;
    }
    const StepRecord* replay = references_.replay != nullptr ? replay_step(0) : nullptr;
    std::vector<RankSnapshot> actual;
    for (const RankRecord& of_rank : records_) {
      actual.push_back({of_rank.rank, &phase.get(*of_rank.record)});
    }
    compare_all_ranks(phase.name, replay != nullptr ? phase.get(*replay) : *actual.front().snapshot,
                      actual);
  }

  // The ranks that differ from what is expected; the oracle is `ranks` if they also differ from
  // each other.
  void compare_all_ranks(const char* phase, const Snapshot& expected,
                         const std::vector<RankSnapshot>& actual) {
    std::vector<std::int64_t> differing;
    std::optional<Divergence> first;
    bool agree = true;
    for (const RankSnapshot& of_rank : actual) {
      if (!same_bits(*of_rank.snapshot, *actual.front().snapshot)) {
        agree = false;
      }
      if (auto difference = first_difference(expected, *of_rank.snapshot, Equality::kBits)) {
        differing.push_back(of_rank.rank);
        first = first ? first : difference;
      }
    }
    if (first && (references_.replay != nullptr || !agree)) {
      accuse(!agree && references_.ranks ? "ranks" : "replay", phase, differing, *first);
    }
  }

  void compare_buffers() {
    for (const RankRecord& of_rank : records_) {
      if (const StepRecord* replay = replay_step(of_rank.rank)) {
        compare_buffers_of(of_rank.rank, "buffer", replay->buffers, of_rank.record->buffers);
      }
    }
  }

  void compare_buffers_of(std::int64_t rank, const char* phase, const Snapshot& expected,
                          const Snapshot& actual) {
    if (auto difference = first_difference(expected, actual, Equality::kBits)) {
      accuse("replay", phase, {rank}, *difference);
    }
  }

  // Ranks that differ from the serial reference; those that hold the bits of the first share its
  // fate.
  template <typename Differs>
  std::vector<std::int64_t> ranks_that(const PhaseOf& phase, const Differs& differs) const {
    std::vector<std::int64_t> ranks;
    bool first_differs = false;
    for (std::size_t i = 0; i < records_.size(); ++i) {
      const Snapshot& own = phase.get(*records_[i].record);
      const bool as_first = i > 0 && same_bits(own, phase.get(*records_.front().record));
      const bool wrong = as_first ? first_differs : differs(own);
      first_differs = i == 0 ? wrong : first_differs;
      if (wrong) {
        ranks.push_back(records_[i].rank);
      }
    }
    return ranks;
  }

  void compare_serial(const PhaseOf& phase) {
    if (found_ || references_.serial == nullptr) {
      return;
    }
    const StepRecord* record = find_step(references_.serial->ranks.front(), step_);
    if (record == nullptr) {
      return;
    }
    const Equality equality =
        references_.undefined_is_zero ? Equality::kValuesOrUndefined : Equality::kValues;
    std::optional<Divergence> first;
    const auto ranks = ranks_that(phase, [&](const Snapshot& own) {
      auto difference = first_difference(phase.get(*record), own, equality);
      const bool differs = difference.has_value();
      if (differs && !first) {
        first = std::move(difference);
      }
      return differs;
    });
    if (first) {
      accuse("serial", phase.name, ranks, *first);
    }
  }

  void compare_bound(const char* phase, const PhaseOf& of) {
    if (found_ || references_.bound == nullptr) {
      return;
    }
    const auto ratio = [](const Distance& d) { return d.bound > 0.0 ? d.observed / d.bound : 0.0; };
    std::optional<DerivedBound::Worst> first;
    const auto ranks = ranks_that(of, [&](const Snapshot& own) {
      const auto worst =
          references_.bound->hold_against(own, step_, phase, references_.undefined_is_zero);
      if (worst && (!worst_ || worst->exceeded || ratio(worst->distance) > ratio(*worst_))) {
        worst_ = worst->distance;
      }
      if (worst && worst->exceeded && !first) {
        first = worst;
      }
      return worst && worst->exceeded;
    });
    if (!first) {
      return;
    }
    Divergence divergence;
    divergence.tensor = first->tensor;
    divergence.element = first->element;
    divergence.expected = fmt::format("{:.17g} (float64)", first->expected);
    divergence.actual = fmt::format("{:.17g}", first->actual);
    divergence.num_elements_differ = first->element < 0 ? -1 : 1;
    accuse("serial", phase, ranks, divergence);
  }

  void accuse(const std::string& oracle, const std::string& phase, std::vector<std::int64_t> ranks,
              Divergence divergence) {
    if (!found_) {
      divergence.oracle = oracle;
      divergence.phase = phase;
      divergence.step = step_;
      divergence.ranks = std::move(ranks);
      found_ = std::move(divergence);
    }
  }

  const Run& subject_;
  const References& references_;
  std::int64_t step_ = -1;
  std::vector<RankRecord> records_;  // of step_, of the ranks that have inputs for it
  std::optional<Divergence> found_;
  std::optional<Distance> worst_;
};

}  // namespace

Comparison compare_runs(const Run& subject, const References& references) {
  return Comparer(subject, references).compare();
}

}  // namespace lockstep::harness
