// SPDX-License-Identifier: Apache-2.0
// Ranks that cannot be told apart are one class; a class is as slow as its slowest rank.
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "sim/timing/prediction.h"
#include "sim/timing/run_plan.h"

namespace lockstep::sim::timing {

namespace {

// Note [Folding ranks]
// Ranks are in one class if they have the same roles in all collectives and are slowed by the same
// straggler tables; rank 0, whose times are told, is a class of its own. Then
// - all ranks of a class end a collective together, since its end depends on the hub and the role;
// - so they begin every segment together, since a segment ends with a collective;
// - what others see of them is the latest of their launches, which is that of the rank with the
//   largest draw, among those that stalled or among those that did not.
// Nothing is approximated: see Note [Picoseconds].

struct RankClass {
  std::int64_t member = 0;       ///< its first rank
  std::uint32_t stragglers = 0;  ///< see PaceModel
  Ps begin_ps = 0;               ///< of the segment
  Ps free_ps = 0;                ///< the last collective so far has ended
  std::vector<Pace> paces;       ///< one of them is the slowest at any time
};

struct Classes {
  std::vector<RankClass> all;                ///< rank 0's first
  std::vector<std::uint32_t> class_of_rank;  ///< only if draws are random
};

Classes classes_of(const RunPlan& run) {
  // A role does not depend on bytes: one collective of each algorithm that occurs is enough.
  std::map<Algorithm, const Collective*> algorithms;
  const auto first = run.step(0);
  const auto later = run.step(run.setup().train.steps - 1);
  for (const auto& step : {first, later}) {
    for (const auto& collectives : step->collectives) {
      for (const Collective& c : collectives) algorithms.emplace(c.algorithm(), &c);
    }
  }
  const auto role = [&](Algorithm algorithm, std::int64_t rank) {
    const auto found = algorithms.find(algorithm);
    return found == algorithms.end() ? 0 : found->second->role(rank);
  };
  using Key = std::tuple<bool, std::uint32_t, std::uint32_t, std::uint32_t>;
  std::map<Key, std::uint32_t> numbers;
  Classes classes;
  const std::int64_t ranks = run.setup().world.ranks;
  const bool random = run.paces().is_random();
  if (random) classes.class_of_rank.resize(static_cast<std::size_t>(ranks));
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const Key key{rank != 0, run.paces().stragglers_of(rank), role(Algorithm::kTree, rank),
                  role(Algorithm::kHalvingDoubling, rank)};
    const auto [found, is_new] =
        numbers.try_emplace(key, static_cast<std::uint32_t>(classes.all.size()));
    if (is_new) {
      RankClass& added = classes.all.emplace_back();
      added.member = rank;
      added.stragglers = std::get<1>(key);
    }
    if (random) classes.class_of_rank[static_cast<std::size_t>(rank)] = found->second;
  }
  return classes;
}

class FoldedRun {
 public:
  explicit FoldedRun(const RunPlan& run)
      : run_(run), classes_(classes_of(run)), prediction_(run.begin_prediction()) {
    prediction_.num_classes = static_cast<std::int64_t>(classes_.all.size());
  }

  Prediction simulate() {
    const std::int64_t steps = run_.setup().train.steps;
    for (std::int64_t step = 0; step < steps; ++step) {
      set_paces(step);
      simulate_step(*run_.step(step), step + 1 == steps);
    }
    return std::move(prediction_);
  }

 private:
  void set_paces(std::int64_t step) {
    const PaceModel& paces = run_.paces();
    if (!paces.is_random()) {
      for (RankClass& c : classes_.all) c.paces = {paces.pace({}, c.stragglers, step)};
      return;
    }
    // The largest draw of each class, without and with a stall; -1: there is none.
    std::vector<std::int64_t> largest(2 * classes_.all.size(), -1);
    const auto ranks = static_cast<std::int64_t>(classes_.class_of_rank.size());
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const Draw draw = paces.draw(rank, step);
      const std::size_t slot =
          2 * classes_.class_of_rank[static_cast<std::size_t>(rank)] + (draw.stalled ? 1 : 0);
      largest[slot] = std::max<std::int64_t>(largest[slot], draw.score);
    }
    for (std::size_t slot = 0; slot < largest.size(); ++slot) {
      RankClass& c = classes_.all[slot / 2];
      const bool stalled = slot % 2 == 1;
      if (!stalled) c.paces.clear();
      if (largest[slot] < 0) continue;
      const Draw draw{static_cast<std::uint32_t>(largest[slot]), stalled};
      c.paces.push_back(paces.pace(draw, c.stragglers, step));
    }
  }

  void simulate_step(const PlannedStep& step, bool tell) {
    StepTimes times;
    for (const RankClass& c : classes_.all) {
      times.begin_ps = std::max(times.begin_ps, c.begin_ps);
      for (const Pace& pace : c.paces) {
        Ps end_ps = c.begin_ps + pace.delay_ps;
        for (const Segment& s : step.plan.segments) end_ps += scaled(s.compute_ps, pace.factor);
        times.compute_end_ps = std::max(times.compute_end_ps, end_ps);
      }
    }
    told_from_ps_ = classes_.all.front().begin_ps;
    for (std::size_t i = 0; i < step.plan.segments.size(); ++i) {
      simulate_segment(step.plan.segments[i], step.collectives[i], tell);
      // A stall is over when the first segment is.
      for (RankClass& c : classes_.all) {
        for (Pace& pace : c.paces) pace.delay_ps = 0;
      }
    }
    for (RankClass& c : classes_.all) {
      c.begin_ps += step.plan.optimizer_ps;
      times.end_ps = std::max(times.end_ps, c.begin_ps);
    }
    prediction_.steps.push_back(times);
  }

  void simulate_segment(const Segment& segment, const std::vector<Collective>& collectives,
                        bool tell) {
    const RankClass& rank_0 = classes_.all.front();
    if (tell) {
      const Ps since_ps = rank_0.begin_ps - told_from_ps_;
      const Pace& pace = rank_0.paces.front();
      prediction_.backward_begin_ps.push_back(since_ps + pace.at(segment.backward_begin_ps));
      prediction_.backward_end_ps.push_back(since_ps + pace.at(segment.compute_ps));
    }
    for (RankClass& c : classes_.all) c.free_ps = c.begin_ps;
    for (std::size_t i = 0; i < collectives.size(); ++i) {
      const Launch& launch = segment.launches[i];
      const Collective& collective = collectives[i];
      Ps hub_ps = 0;
      CollectiveTimes told = untimed(segment, launch, collective);
      for (const RankClass& c : classes_.all) {
        Ps ready_ps = 0;
        for (const Pace& pace : c.paces) {
          ready_ps = std::max(ready_ps, c.begin_ps + pace.at(launch.offset_ps));
        }
        const Ps begin_ps = std::max(ready_ps, c.free_ps);
        hub_ps = std::max(hub_ps, begin_ps + launch.overhead_ps + collective.up_ps(c.member));
        if (&c == &rank_0) {
          told.ready_ps = ready_ps - told_from_ps_;
          told.begin_ps = begin_ps - told_from_ps_;
        }
      }
      for (RankClass& c : classes_.all) c.free_ps = hub_ps + collective.down_ps(c.member);
      prediction_.num_events += static_cast<std::int64_t>(classes_.all.size());
      if (!tell) continue;
      told.end_ps = rank_0.free_ps - told_from_ps_;
      prediction_.timeline.push_back(told);
    }
    for (RankClass& c : classes_.all) c.begin_ps = c.free_ps;
  }

  const RunPlan& run_;
  Classes classes_;
  Prediction prediction_;
  Ps told_from_ps_ = 0;  ///< rank 0 began the step
};

}  // namespace

Prediction simulate_folded(const Setup& setup) {
  const RunPlan run(setup);
  return FoldedRun(run).simulate();
}

}  // namespace lockstep::sim::timing
