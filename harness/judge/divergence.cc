// SPDX-License-Identifier: Apache-2.0
// Step-by-step comparison of a run with its references.
#include "harness/judge/divergence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

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
      for (const StepRecord& record : subject_.ranks.front().steps) {
        step_ = record.step;
        records_.clear();
        for (const RankRun& rank : subject_.ranks) {
          if (const StepRecord* of_rank = find_step(rank, step_)) {
            records_.push_back(of_rank);
          }
        }
        if (!found_ && records_.size() == subject_.ranks.size()) {
          compare_step();
        }
      }
      compare_step_sets();
    }
    return {found_, worst_};
  }

 private:
  bool compare_initial() {
    step_ = -1;
    const auto initial = [](const RankRun& rank) -> const Snapshot& {
      return rank.initial_parameters;
    };
    const auto& expected = references_.replay != nullptr
                               ? references_.replay->ranks.front().initial_parameters
                               : subject_.ranks.front().initial_parameters;
    if (references_.ranks || references_.replay != nullptr) {
      compare_all_ranks("init", expected, initial);
    }
    // A broadcast at construction gives all ranks rank 0's buffers, too.
    if (!found_ && references_.replay != nullptr) {
      compare_all_ranks(
          "init", references_.replay->ranks.front().initial_buffers,
          [](const RankRun& rank) -> const Snapshot& { return rank.initial_buffers; });
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

  const StepRecord* replay_step(std::size_t rank) const {
    return find_step(references_.replay->ranks[rank], step_);
  }

  // A rank that ended well without a step that rank 0 made, or with one more, is not in step.
  void compare_step_sets() {
    const RankRun& first = subject_.ranks.front();
    for (const RankRun& rank : subject_.ranks) {
      const bool ended_well = rank.ending == Ending::kFinished || rank.ending == Ending::kLeft;
      if (found_ || !references_.ranks || !ended_well ||
          (first.ending != Ending::kFinished && first.ending != Ending::kLeft)) {
        return;
      }
      for (std::size_t i = 0; i < std::max(rank.steps.size(), first.steps.size()); ++i) {
        const bool in_both = i < rank.steps.size() && i < first.steps.size();
        if (in_both && rank.steps[i].step == first.steps[i].step) {
          continue;
        }
        step_ = i < first.steps.size() ? first.steps[i].step : rank.steps[i].step;
        Divergence divergence;
        divergence.tensor = "(steps completed)";
        divergence.expected = fmt::format("{} steps", first.steps.size());
        divergence.actual = fmt::format("{} steps", rank.steps.size());
        accuse("ranks", "parameter", {rank.rank}, divergence);
        break;
      }
    }
  }

  void compare_losses() {
    for (std::size_t rank = 0; rank < subject_.ranks.size() && !found_; ++rank) {
      const StepRecord& record = *records_[rank];
      const StepRecord* replay = replay_step(rank);
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
        accuse("replay", "forward", {static_cast<std::int64_t>(rank)}, divergence);
        return;
      }
    }
  }

  void compare_phase(const PhaseOf& phase) {
    if (found_ || (!references_.ranks && references_.replay == nullptr)) {
      return;
    }
    const StepRecord* replay = references_.replay != nullptr ? replay_step(0) : nullptr;
    const Snapshot& expected =
        replay != nullptr ? phase.get(*replay) : phase.get(*records_.front());
    compare_all_ranks(phase.name, expected, [&](const RankRun& rank) -> const Snapshot& {
      return phase.get(*find_step(rank, step_));
    });
  }

  // The ranks that differ from what is expected; the oracle is `ranks` if they also differ from
  // each other.
  template <typename Get>
  void compare_all_ranks(const char* phase, const Snapshot& expected, const Get& get) {
    std::vector<std::int64_t> differing;
    std::optional<Divergence> first;
    bool agree = true;
    for (const RankRun& rank : subject_.ranks) {
      if (!same_bits(get(rank), get(subject_.ranks.front()))) {
        agree = false;
      }
      if (auto difference = first_difference(expected, get(rank), Equality::kBits)) {
        differing.push_back(rank.rank);
        first = first ? first : difference;
      }
    }
    if (first && (references_.replay != nullptr || !agree)) {
      accuse(!agree && references_.ranks ? "ranks" : "replay", phase, differing, *first);
    }
  }

  void compare_buffers() {
    for (std::size_t rank = 0; rank < subject_.ranks.size() && !found_; ++rank) {
      const StepRecord* replay = replay_step(rank);
      if (replay == nullptr) {
        continue;
      }
      if (auto difference =
              first_difference(replay->buffers, records_[rank]->buffers, Equality::kBits)) {
        accuse("replay", "buffer", {static_cast<std::int64_t>(rank)}, *difference);
      }
    }
  }

  // Ranks that differ from the serial reference; those that hold the bits of rank 0 share its fate.
  template <typename Differs>
  std::vector<std::int64_t> ranks_that(const PhaseOf& phase, const Differs& differs) const {
    std::vector<std::int64_t> ranks;
    bool first_differs = false;
    for (std::size_t rank = 0; rank < records_.size(); ++rank) {
      const Snapshot& own = phase.get(*records_[rank]);
      const bool as_first = rank > 0 && same_bits(own, phase.get(*records_.front()));
      const bool wrong = as_first ? first_differs : differs(own);
      first_differs = rank == 0 ? wrong : first_differs;
      if (wrong) {
        ranks.push_back(static_cast<std::int64_t>(rank));
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
  std::vector<const StepRecord*> records_;  // of step_, by rank
  std::optional<Divergence> found_;
  std::optional<Distance> worst_;
};

}  // namespace

Comparison compare_runs(const Run& subject, const References& references) {
  return Comparer(subject, references).compare();
}

}  // namespace lockstep::harness
