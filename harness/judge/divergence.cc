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
      std::size_t num_steps = subject_.ranks.front().steps.size();
      for (const RankRun& rank : subject_.ranks) {
        num_steps = std::min(num_steps, rank.steps.size());
      }
      for (std::size_t at = 0; at < num_steps && !found_; ++at) {
        step_ = subject_.ranks.front().steps[at].step;
        compare_step(at);
      }
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
    return found_.has_value();
  }

  void compare_step(std::size_t at) {
    if (references_.replay != nullptr) {
      compare_losses(at);
    }
    compare_phase(at, kGradient);
    compare_bound(at, "gradient", kGradient);
    compare_serial(at, kGradient);
    if (references_.replay != nullptr) {
      compare_buffers(at);
    }
    compare_phase(at, kParameter);
    compare_bound(at, "parameter", kParameter);
    compare_serial(at, kParameter);
    compare_phase(at, kOptimizer);
  }

  const StepRecord* replay_step(std::size_t at, std::size_t rank) const {
    const auto& steps = references_.replay->ranks[rank].steps;
    for (const StepRecord& record : steps) {
      if (record.step == subject_.ranks[rank].steps[at].step) {
        return &record;
      }
    }
    return nullptr;
  }

  void compare_losses(std::size_t at) {
    for (std::size_t rank = 0; rank < subject_.ranks.size() && !found_; ++rank) {
      const StepRecord& record = subject_.ranks[rank].steps[at];
      const StepRecord* replay = replay_step(at, rank);
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

  void compare_phase(std::size_t at, const PhaseOf& phase) {
    if (found_ || (!references_.ranks && references_.replay == nullptr)) {
      return;
    }
    const StepRecord* replay = references_.replay != nullptr ? replay_step(at, 0) : nullptr;
    const Snapshot& expected =
        replay != nullptr ? phase.get(*replay) : phase.get(subject_.ranks.front().steps[at]);
    compare_all_ranks(phase.name, expected, [&](const RankRun& rank) -> const Snapshot& {
      return phase.get(rank.steps[at]);
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

  void compare_buffers(std::size_t at) {
    for (std::size_t rank = 0; rank < subject_.ranks.size() && !found_; ++rank) {
      const StepRecord* replay = replay_step(at, rank);
      if (replay == nullptr) {
        continue;
      }
      if (auto difference = first_difference(
              replay->buffers, subject_.ranks[rank].steps[at].buffers, Equality::kBits)) {
        accuse("replay", "buffer", {static_cast<std::int64_t>(rank)}, *difference);
      }
    }
  }

  void compare_serial(std::size_t at, const PhaseOf& phase) {
    if (found_ || references_.serial == nullptr) {
      return;
    }
    for (const StepRecord& record : references_.serial->ranks.front().steps) {
      if (record.step == step_) {
        if (auto difference =
                first_difference(phase.get(record), phase.get(subject_.ranks.front().steps[at]),
                                 Equality::kValues)) {
          accuse("serial", phase.name, all_ranks(), *difference);
        }
      }
    }
  }

  void compare_bound(std::size_t at, const char* phase, const PhaseOf& of) {
    if (found_ || references_.bound == nullptr) {
      return;
    }
    const auto worst =
        references_.bound->hold_against(of.get(subject_.ranks.front().steps[at]), step_, phase);
    if (!worst) {
      return;
    }
    const auto ratio = [](const Distance& d) { return d.bound > 0.0 ? d.observed / d.bound : 0.0; };
    if (!worst_ || worst->exceeded || ratio(worst->distance) > ratio(*worst_)) {
      worst_ = worst->distance;
    }
    if (worst->exceeded) {
      Divergence divergence;
      divergence.tensor = worst->tensor;
      divergence.element = worst->element;
      divergence.expected = fmt::format("{:.17g} (float64)", worst->expected);
      divergence.actual = fmt::format("{:.17g}", worst->actual);
      divergence.ulp =
          ulp_distance(static_cast<float>(worst->expected), static_cast<float>(worst->actual));
      divergence.num_elements_differ = 1;
      accuse("serial", phase, all_ranks(), divergence);
    }
  }

  std::vector<std::int64_t> all_ranks() const {
    std::vector<std::int64_t> ranks;
    for (const RankRun& rank : subject_.ranks) {
      ranks.push_back(rank.rank);
    }
    return ranks;
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
  std::optional<Divergence> found_;
  std::optional<Distance> worst_;
};

}  // namespace

Comparison compare_runs(const Run& subject, const References& references) {
  return Comparer(subject, references).compare();
}

}  // namespace lockstep::harness
